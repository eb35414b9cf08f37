-- The readable range of a shard.
-- result: purged_upto (inclusive), next_ulid (nothing at or above it is committed, nothing below it will be assigned),
--     floor_time (sealed until; 1970-01-01 before the first seal); one row, even for a shard never used.
-- permission: readers
create or alter procedure <<schema>>.[shard_bounds:<<name>>] (@shard_id <<shard_type>>)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @purged binary(16), @next binary(16), @floor datetime2(3);
    select @floor = f.floor_time from <<schema>>.[feeds] as f where f.feed_id = <<feed_id>>;
    select @purged = s.purged_upto, @next = s.ulid from <<schema>>.[state:<<name>>] as s where s.shard_id = @shard_id;
    if @next is null set @next = <<schema>>.[floor_ulid](@floor);
    if @purged is null set @purged = 0x00000000000000000000000000000000;
    select @purged as purged_upto, @next as next_ulid, @floor as floor_time;
end
