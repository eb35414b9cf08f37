-- What is common to all feeds. The procedures check the right of their caller on the feed (find_feed).
grant execute on <<schema>>.[list_cursors] to [<<schema_name>>.users];
grant execute on <<schema>>.[list_cursor_history] to [<<schema_name>>.users];
grant execute on <<schema>>.[list_consumers] to [<<schema_name>>.users];
grant execute on <<schema>>.[list_invocations] to [<<schema_name>>.users];
grant execute on <<schema>>.[list_dead_letters] to [<<schema_name>>.users];
grant execute on <<schema>>.[list_stale_marks] to [<<schema_name>>.users];
grant execute on <<schema>>.[next_attempt] to [<<schema_name>>.users];
grant execute on <<schema>>.[change_consumer] to [<<schema_name>>.users];
grant execute on <<schema>>.[drop_consumer] to [<<schema_name>>.users];
grant execute on <<schema>>.[log_attempt] to [<<schema_name>>.users];
grant execute on <<schema>>.[purge_invocations] to [<<schema_name>>.users];
grant execute on <<schema>>.[resolve_dead_letter] to [<<schema_name>>.users];
grant execute on <<schema>>.[park_again] to [<<schema_name>>.users];
grant select on <<schema>>.[table_columns] to public;
grant execute on <<schema>>.[now] to public;
grant execute on <<schema>>.[version] to public;
grant execute on <<schema>>.[note_schemas] to public;
