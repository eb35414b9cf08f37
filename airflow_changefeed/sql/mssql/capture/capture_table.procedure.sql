-- Calls what belongs to one table of a capture; by name, so that rights go on through the owner.
-- @what: rows or snapshot. @is_exact: of rows. @rows: what it gives.
-- permission: internal
create procedure <<schema>>.[capture_table:<<name>>] (
    @table_no smallint,
    @what varchar(10),
    @is_exact bit = 0,
    @rows bigint = null output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
<<calls>>
end
