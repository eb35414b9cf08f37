-- capture_tables of the captures whose feed the caller may read.
-- permission: users; shows what the caller may read
create or alter view <<schema>>.[readable_capture_tables]
as
select
    t.capture_id, t.table_no, t.object_id, t.table_schema, t.table_name, t.shard, t.insert_columns, t.update_columns, t.delete_columns,
    t.is_whole, t.base_rows, t.base_catalog, t.guard_name, t.trigger_count, t.trigger_modified, t.unrecorded_at
from <<schema>>.[capture_tables] as t
inner join <<schema>>.[readable_captures] as c on c.capture_id = t.capture_id;
