-- Throws if events after a position were purged.
-- errors: 77104
-- permission: internal
create or alter procedure <<schema>>.[check_purged:<<name>>] (
    @shard_id <<shard_type>>,
    @after binary(16)
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @message nvarchar(2048), @purged binary(16);
    select @purged = s.purged_upto from <<schema>>.[state:<<name>>] as s where s.shard_id = @shard_id;
    if @after < @purged
    begin
        set @message = concat(
            N'changefeed 77104: feed "<<name_text>>" shard ', <<schema>>.[shard_text](@shard_id), N': events up to ',
            <<schema>>.[ulid_text](@purged), N' were purged, so reading cannot start after ', <<schema>>.[ulid_text](@after),
            N'. Start at the purged position, or read the export of that time');
        throw 77104, @message, 1;
    end;
end
