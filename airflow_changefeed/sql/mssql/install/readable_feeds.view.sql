-- The feeds that the caller may read: whose read_feed:T it may execute, so that each feed's own grants and denies decide.
-- permission: internal
create or alter view <<schema>>.[readable_feeds]
as
select f.feed_id, f.name, f.upgrade_problem
from <<schema>>.[feeds] as f
where has_perms_by_name(concat(N'<<schema_in_text>>.', quotename(concat(N'read_feed:', f.name))), N'OBJECT', N'EXECUTE') = 1;
