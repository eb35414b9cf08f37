-- Serialized writers have no outbox, so nothing waits.
-- permission: internal
create or alter procedure <<schema>>.[waiting:<<name>>]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    delete from #waiting;
end
