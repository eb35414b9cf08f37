-- Writers lock and take ULIDs. mssql-changefeed v2 also gave them the state table, in which mistakes are permanent; lock:T now accesses it
-- for them.
revoke insert, update on <<schema>>.[state:<<name>>] from [<<schema_name>>.writers:<<name>>];
grant execute on <<schema>>.[lock:<<name>>] to [<<schema_name>>.writers:<<name>>];
grant execute on <<schema>>.[lock_feed:<<name>>] to [<<schema_name>>.writers:<<name>>];
grant update on <<schema>>.[sequence] to [<<schema_name>>.writers:<<name>>];
grant execute on <<schema>>.[ulid:<<name>>] to public;
grant execute on <<schema>>.[shard_ulid:<<name>>] to public;
grant execute on <<schema>>.[ulid] to public;
