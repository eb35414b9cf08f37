-- The captures whose feed the caller may read; the tables themselves have all captures.
-- permission: users; shows what the caller may read
create or alter view <<schema>>.[readable_captures]
as
select
    c.capture_id, c.feed_id, c.name, c.key_change, c.keep_unchanged, c.session_keys, c.trace_key, c.with_sequence, c.guard_table,
    c.guard_schema, c.on_ddl, c.has_ddl, c.not_for_replication, c.is_enabled, c.enabled_at, c.disabled_at, c.version
from <<schema>>.[captures] as c
where has_perms_by_name(concat(N'<<schema_in_text>>.', quotename(concat(N'feed:', c.name))), N'OBJECT', N'SELECT') = 1;
