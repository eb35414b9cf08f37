-- Writers add to the outbox and can do nothing else. Its sequence is reached through the default, having the same owner.
grant insert on <<schema>>.[outbox:<<name>>] to [<<schema_name>>.writers:<<name>>];
