-- Readers of a capture may read its events, which belong to changefeed; operators, who seal, compare them with the captured tables.
grant select on <<table>> to [<<schema_name>>.readers:<<name>>];
grant execute on <<schema>>.[check_capture:<<name>>] to [<<schema_name>>.operators:<<name>>];
grant execute on <<schema>>.[compare_capture:<<name>>] to [<<schema_name>>.operators:<<name>>];
grant execute on <<schema>>.[resolve_capture:<<name>>] to [<<schema_name>>.operators:<<name>>];
grant execute on <<schema>>.[record_rows:<<name>>] to [<<schema_name>>.operators:<<name>>];
