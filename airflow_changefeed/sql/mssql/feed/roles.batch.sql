-- The roles of the feed, which stay as they are when they are there.
if database_principal_id(N'<<schema_text>>.readers:<<name_text>>') is null create role [<<schema_name>>.readers:<<name>>];
if database_principal_id(N'<<schema_text>>.writers:<<name_text>>') is null create role [<<schema_name>>.writers:<<name>>];
if database_principal_id(N'<<schema_text>>.operators:<<name_text>>') is null create role [<<schema_name>>.operators:<<name>>];
exec (N'alter role [<<schema_name_in_text>>.locks] add member [<<schema_name_in_text>>.readers:<<name_in_text>>]');
exec (N'alter role [<<schema_name_in_text>>.locks] add member [<<schema_name_in_text>>.writers:<<name_in_text>>]');
-- For those who do both, under the name that mssql-changefeed's readme gives it.
if database_principal_id(N'<<role_prefix_text>>role:<<name_text>>') is null
begin
    create role [<<role_prefix>>role:<<name>>];
    exec (N'alter role [<<schema_name_in_text>>.readers:<<name_in_text>>] add member [<<role_prefix_in_text>>role:<<name_in_text>>]');
    exec (N'alter role [<<schema_name_in_text>>.writers:<<name_in_text>>] add member [<<role_prefix_in_text>>role:<<name_in_text>>]');
end;
