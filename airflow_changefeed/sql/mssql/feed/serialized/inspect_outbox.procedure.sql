-- Serialized writers have no outbox, so nothing waits.
-- result: shard_id, time_hint, age, hangs, first_sequence; no row. Then bound, one row, null.
-- permission: readers
create or alter procedure <<schema>>.[inspect_outbox:<<name>>]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    select convert(<<shard_type>>, null) as shard_id, convert(datetime2(3), null) as time_hint, convert(bigint, null) as age,
        convert(bigint, null) as hangs, convert(bigint, null) as first_sequence
    where 1 = 0;
    select convert(bigint, null) as bound;
end
