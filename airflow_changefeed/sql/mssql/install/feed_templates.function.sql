-- The templates of a feed: the common ones and those of its kind; a capture overrides some.
-- @kind: outbox or serialized. @is_capture: 1 for the feed of a capture.
-- result: place, object, type, body.
create or alter function <<schema>>.[feed_templates](@kind varchar(10), @is_capture bit) returns table
as
return
select t.place, t.object, t.type, t.body
from <<schema>>.[templates]() as t
where t.kind is null
    or (t.kind = 'capture' and @is_capture = 1)
    or (t.kind = @kind and not (@is_capture = 1 and exists (
        select 1 from <<schema>>.[templates]() as c where c.kind = 'capture' and c.object = t.object and c.type = t.type)));
