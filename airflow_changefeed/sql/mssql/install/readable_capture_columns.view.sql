-- capture_columns of the captures whose feed the caller may read.
-- permission: users; shows what the caller may read
create or alter view <<schema>>.[readable_capture_columns]
as
select
    t.capture_id, t.table_no, t.place, t.name, t.stored_name, t.definition, t.key_place, t.on_insert, t.on_update, t.on_delete
from <<schema>>.[capture_columns] as t
inner join <<schema>>.[readable_captures] as c on c.capture_id = t.capture_id;
