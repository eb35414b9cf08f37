-- Throws for a cursor beyond the shard's high-water time.
-- errors: 77105
-- permission: internal
create or alter procedure <<schema>>.[check_beyond:<<name>>] (
    @shard_id <<shard_type>>,
    @cursor binary(16)
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @message nvarchar(2048), @next binary(16);
    select @next = s.ulid from <<schema>>.[state:<<name>>] as s where s.shard_id = @shard_id;
    if @next is null
        select @next = <<schema>>.[floor_ulid](f.floor_time) from <<schema>>.[feeds] as f where f.feed_id = <<feed_id>>;
    if @cursor >= @next and @cursor > 0x00000000000000000000000000000000
    begin
        set @message = concat(
            N'changefeed 77105: feed "<<name_text>>" shard ', <<schema>>.[shard_text](@shard_id), N': cursor ',
            <<schema>>.[ulid_text](@cursor), N' is beyond the shard''s high-water time; the highest position is ', <<schema>>.[ulid_text](@next),
            N'. The cursor belongs to another feed, or the database was restored to an earlier state; choose one that the feed has reached');
        throw 77105, @message, 1;
    end;
end
