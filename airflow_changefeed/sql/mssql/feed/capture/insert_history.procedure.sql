-- A capture takes no history: its events come only from its triggers.
-- errors: 77120 always
-- permission: operators
create or alter procedure <<schema>>.[insert_history:<<name>>] (
    @shard_id <<shard_type>>,
    @reason nvarchar(1000),
    @lock_timeout int = 60000
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    throw 77120, N'changefeed 77120: feed "<<name_text>>" is a capture, whose events come only from its triggers; for history, set up a feed over a table of your own', 1;
end
