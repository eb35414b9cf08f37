-- The schema of all objects below.
if schema_id(N'<<schema_text>>') is null exec (N'create schema <<schema_in_text>>');
