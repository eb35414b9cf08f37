-- The existing triggers of captures, by name; none for a dropped table.
-- is_disabled and modify_date: from sys.triggers. stamp: which trigger it is, and when it was last altered, enabled or disabled, by the server's
-- local time, which may go back; so stamps are compared for equality only.
-- permission: internal
create or alter view <<schema>>.[capture_triggers]
as
select t.capture_id, t.table_no, r.object_id as trigger_id, r.name, r.is_disabled, r.modify_date,
    concat(r.object_id, '@', convert(varchar(23), r.modify_date, 121)) as stamp
from <<schema>>.[capture_tables] as t
inner join <<schema>>.[captures] as c on c.capture_id = t.capture_id
inner join sys.triggers as r
    on r.parent_id = t.object_id
    and r.name collate database_default in (
        concat(N'capture_insert.', t.table_no, N':', c.name),
        concat(N'capture_update.', t.table_no, N':', c.name),
        concat(N'capture_delete.', t.table_no, N':', c.name));
