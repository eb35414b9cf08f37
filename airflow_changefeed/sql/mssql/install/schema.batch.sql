-- The schema of all objects below. It belongs to dbo, because captures need the owner of the tables that they record.
if schema_id(N'<<schema_text>>') is null exec (N'create schema <<schema_in_text>> authorization dbo');
