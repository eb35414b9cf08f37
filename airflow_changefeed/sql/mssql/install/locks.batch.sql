-- The role whose members may take changefeed's application locks: readers and writers of every feed, and users who set up feeds. With
-- @DbPrincipal only members of that role can take a lock [Microsoft: sp_getapplock]; with public everybody in the database could block
-- feeds.
if database_principal_id(N'<<schema_text>>.locks') is null exec (N'create role [<<schema_name_in_text>>.locks]');
