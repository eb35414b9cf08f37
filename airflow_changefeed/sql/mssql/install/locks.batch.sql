-- Whose members may take changefeed's application locks: readers and writers of every feed, and who sets feeds up. Such a lock is
-- kept under the name of a role, and nobody else can take it [Microsoft: sp_getapplock, @DbPrincipal]; under public everybody
-- in the database could hold feeds up.
if database_principal_id(N'<<schema_text>>.locks') is null exec (N'create role [<<schema_name_in_text>>.locks]');
