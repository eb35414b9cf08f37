-- Writers lock and take ULIDs. mssql-changefeed v2 also gave them the state table, in which mistakes are permanent; lock:T now accesses it
-- for them.
declare @revoke nvarchar(max) = N'revoke insert, update on <<schema_in_text>>.[state:<<name_in_text>>] from [<<schema_name_in_text>>.writers:<<name_in_text>>]';
exec sys.sp_executesql @revoke;
grant execute on <<schema>>.[lock:<<name>>] to [<<schema_name>>.writers:<<name>>];
grant execute on <<schema>>.[lock_feed:<<name>>] to [<<schema_name>>.writers:<<name>>];
grant update on <<schema>>.[sequence] to [<<schema_name>>.writers:<<name>>];
grant execute on <<schema>>.[ulid:<<name>>] to public;
grant execute on <<schema>>.[shard_ulid:<<name>>] to public;
grant execute on <<schema>>.[ulid] to public;
