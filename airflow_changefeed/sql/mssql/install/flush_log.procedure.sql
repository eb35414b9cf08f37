-- Flushes commits to disk if the database allows delayed durability, before a seal or drain is reported (ADR 0005, R11).
-- permission: internal
create or alter procedure <<schema>>.[flush_log]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    if exists (select 1 from sys.databases as d where d.name = db_name() and d.delayed_durability > 0)
        exec sys.sp_flush_log;
end
