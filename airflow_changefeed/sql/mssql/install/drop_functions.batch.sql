-- Functions that return tables are made anew, as not every server can replace one; nobody has rights on them. A set-up that
-- runs in between fails, and is repeated.
drop function if exists <<schema>>.[key_columns];
drop function if exists <<schema>>.[templates];
