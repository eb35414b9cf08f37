-- Gives a feed, and so its capture, the next resource version, with the columns that there are now. As the last statement of the
-- caller's transaction: who reads of the feed waits for this row.
-- permission: internal
create procedure <<schema>>.[bump_version] (@feed_id int)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    update <<schema>>.[feeds]
    set resource_version = resource_version + 1,
        schema_print = isnull(<<schema>>.[columns_print](name, object_id), schema_print)
    where feed_id = @feed_id;
end
