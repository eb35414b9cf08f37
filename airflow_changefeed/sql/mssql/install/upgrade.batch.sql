-- Feeds that are there already, also those of mssql-changefeed v2, come to this version.
exec <<schema>>.[upgrade_feeds];
