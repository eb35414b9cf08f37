-- Upgrades existing captures and feeds to this version, including feeds of mssql-changefeed v2.
exec <<schema>>.[upgrade_captures];
exec <<schema>>.[upgrade_feeds];
