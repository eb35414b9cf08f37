-- Serialized writers have no outbox, so nothing waits.
-- permission: internal
create or alter procedure <<schema>>.[count_waiting:<<name>>]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    update #shards set waiting = 0, waiting_since = null;
end
