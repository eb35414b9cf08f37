-- Writers can only insert into the outbox. Its sequence is accessed through the default, by ownership chaining.
grant insert on <<schema>>.[outbox:<<name>>] to [<<schema_name>>.writers:<<name>>];
