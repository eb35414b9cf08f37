-- The marks of a snapshot that are there.
-- result: mark.
-- errors: as find_feed
-- permission: readers of the feed
create or alter procedure <<schema>>.[list_snapshot_marks] (@feed nvarchar(128), @table nvarchar(257), @token nvarchar(64))
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @feed_id int;
    exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
    select m.mark
    from <<schema>>.[snapshot_marks] as m
    where m.feed_id = @feed_id and m.table_name = @table and m.token = @token;
end
