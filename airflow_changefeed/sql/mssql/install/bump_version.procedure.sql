-- Increments the resource version of a feed, and so of its capture, and stores the current columns. Call as the last statement of a
-- transaction: readers of the feed wait for this row.
-- permission: internal
create or alter procedure <<schema>>.[bump_version] (@feed_id int)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    update <<schema>>.[feeds]
    set resource_version = resource_version + 1,
        schema_print = isnull(<<schema>>.[columns_print](name, object_id), schema_print)
    where feed_id = @feed_id;
end
