-- Writes a change of a cursor to its history, which keeps the newest 200 per row. In the caller's transaction, which holds the row lock.
-- permission: internal
create or alter procedure <<schema>>.[note_change] (
    @feed_id int,
    @consumer nvarchar(128),
    @shard nvarchar(36),
    @before binary(16),
    @after binary(16),
    @resource_version bigint,
    @at datetime2(3),
    @by nvarchar(256),
    @why nvarchar(2000)
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @last bigint;
    insert into <<schema>>.[cursor_history] (feed_id, consumer, shard, before_ulid, after_ulid, resource_version, moved_at, moved_by, why)
    values (@feed_id, @consumer, @shard, @before, @after, @resource_version, @at, @by, nullif(@why, N''));
    select @last = h.number from <<schema>>.[cursor_history] as h
    where h.feed_id = @feed_id and h.consumer = @consumer and h.shard = @shard
    order by h.number desc
    offset 200 rows fetch next 1 rows only;
    if @last is not null
        delete from <<schema>>.[cursor_history]
        where feed_id = @feed_id and consumer = @consumer and shard = @shard and number <= @last;
end
