-- The roles of the feed; existing ones stay unchanged.
if not exists (select 1 from sys.database_principals as p where p.name = N'<<schema_text>>.readers:<<name_text>>') create role [<<schema_name>>.readers:<<name>>];
if not exists (select 1 from sys.database_principals as p where p.name = N'<<schema_text>>.writers:<<name_text>>') create role [<<schema_name>>.writers:<<name>>];
if not exists (select 1 from sys.database_principals as p where p.name = N'<<schema_text>>.operators:<<name_text>>') create role [<<schema_name>>.operators:<<name>>];
alter role [<<schema_name>>.users] add member [<<schema_name>>.readers:<<name>>];
alter role [<<schema_name>>.users] add member [<<schema_name>>.writers:<<name>>];
-- A role that is both reader and writer, with its name from mssql-changefeed's readme.
if not exists (select 1 from sys.database_principals as p where p.name = N'<<role_prefix_text>>role:<<name_text>>')
begin
    create role [<<role_prefix>>role:<<name>>];
    alter role [<<schema_name>>.readers:<<name>>] add member [<<role_prefix>>role:<<name>>];
    alter role [<<schema_name>>.writers:<<name>>] add member [<<role_prefix>>role:<<name>>];
end;
