-- Table-valued functions are recreated, because Babelfish cannot replace them; nobody has rights on them. A set-up that runs in between
-- fails and can be repeated.
drop function if exists <<schema>>.[key_columns];
drop function if exists <<schema>>.[captured_columns];
drop function if exists <<schema>>.[feed_templates];
drop function if exists <<schema>>.[templates];
drop function if exists <<schema>>.[capture_templates];
