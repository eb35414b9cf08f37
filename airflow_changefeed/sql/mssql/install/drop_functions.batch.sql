-- Functions that return tables are made anew, as not every server can replace one; nobody has rights on them. A set-up that
-- runs in between fails, and is repeated.
drop function if exists <<schema>>.[key_columns];
drop function if exists <<schema>>.[captured_columns];
drop function if exists <<schema>>.[feed_templates];
drop function if exists <<schema>>.[templates];
drop function if exists <<schema>>.[capture_templates];
