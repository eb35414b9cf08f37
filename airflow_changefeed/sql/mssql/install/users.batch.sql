-- The role of everyone who uses changefeed here: readers and writers of every feed, and users who set up feeds. Its members may execute the
-- procedures common to all feeds, which check their right on the feed (find_feed), and take changefeed's application locks: with @DbPrincipal
-- only members of that role can take a lock [Microsoft: sp_getapplock]; with public everybody in the database could block feeds.
if database_principal_id(N'<<schema_text>>.users') is null create role [<<schema_name>>.users];
