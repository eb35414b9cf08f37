-- Calls the procedures of one table of a capture; by name, to keep the ownership chain.
-- @what: snapshot records its rows after a reset; otherwise @how of capture_rows.N:T. @rows, @gained: its output.
-- permission: internal
create or alter procedure <<schema>>.[capture_table:<<name>>] (
    @table_no smallint,
    @what varchar(10),
    @rows bigint = null output,
    @gained bigint = null output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
<<calls>>
end
