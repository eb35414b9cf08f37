-- Calls what belongs to one table of a capture; by name, so that rights go on through the owner.
-- @what: snapshot records its rows after a reset; else @how of capture_rows.N:T. @rows, @gained: what that gives.
-- permission: internal
create procedure <<schema>>.[capture_table:<<name>>] (
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
