-- capture_gaps of the captures whose feed the caller may read.
-- permission: users; shows what the caller may read
create or alter view <<schema>>.[readable_capture_gaps]
as
select
    t.number, t.capture_id, t.table_no, t.reason, t.found_at, t.after_time, t.resolved_at, t.resolved_by, t.note
from <<schema>>.[capture_gaps] as t
inner join <<schema>>.[readable_captures] as c on c.capture_id = t.capture_id;
