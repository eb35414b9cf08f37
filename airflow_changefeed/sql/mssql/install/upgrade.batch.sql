-- Captures and feeds that are there already, also feeds of mssql-changefeed v2, come to this version.
exec <<schema>>.[upgrade_captures];
exec <<schema>>.[upgrade_feeds];
