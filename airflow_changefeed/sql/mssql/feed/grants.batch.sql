-- Readers read and keep their own cursors. Operators seal, drain, purge, insert history and may move any cursor; they are also readers.
-- Everything else is accessed through the procedures, by ownership chaining.
grant select on <<schema>>.[feed:<<name>>] to [<<schema_name>>.readers:<<name>>];
grant execute on <<schema>>.[read_feed:<<name>>] to [<<schema_name>>.readers:<<name>>];
grant execute on <<schema>>.[poll_feed:<<name>>] to [<<schema_name>>.readers:<<name>>];
grant execute on <<schema>>.[shards:<<name>>] to [<<schema_name>>.readers:<<name>>];
grant execute on <<schema>>.[inspect_outbox:<<name>>] to [<<schema_name>>.readers:<<name>>];
grant execute on <<schema>>.[shard_bounds:<<name>>] to [<<schema_name>>.readers:<<name>>];
grant execute on <<schema>>.[count_feed:<<name>>] to [<<schema_name>>.readers:<<name>>];
grant execute on <<schema>>.[split_feed:<<name>>] to [<<schema_name>>.readers:<<name>>];
grant execute on <<schema>>.[begin_consumer:<<name>>] to [<<schema_name>>.readers:<<name>>];
grant execute on <<schema>>.[move_cursor:<<name>>] to [<<schema_name>>.readers:<<name>>];
grant execute on <<schema>>.[create_consumer:<<name>>] to [<<schema_name>>.readers:<<name>>];
grant execute on <<schema>>.[begin_shards:<<name>>] to [<<schema_name>>.readers:<<name>>];
grant execute on <<schema>>.[consume_events:<<name>>] to [<<schema_name>>.readers:<<name>>];
grant execute on <<schema>>.[overview:<<name>>] to [<<schema_name>>.readers:<<name>>];
alter role [<<schema_name>>.readers:<<name>>] add member [<<schema_name>>.operators:<<name>>];
grant execute on <<schema>>.[drain_feed:<<name>>] to [<<schema_name>>.operators:<<name>>];
grant execute on <<schema>>.[seal_feed:<<name>>] to [<<schema_name>>.operators:<<name>>];
grant execute on <<schema>>.[purge_feed:<<name>>] to [<<schema_name>>.operators:<<name>>];
grant execute on <<schema>>.[insert_history:<<name>>] to [<<schema_name>>.operators:<<name>>];
