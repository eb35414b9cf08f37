-- Calls the procedures of one table of a capture; by name, to keep the ownership chain.
-- @what: of capture_snapshot.N:T, or @how of capture_rows.N:T; the others are their parameters.
-- permission: internal
create or alter procedure <<schema>>.[capture_table:<<name>>] (
    @table_no smallint,
    @what varchar(10),
    @rows bigint = null output,
    @gained bigint = null output,
    @statement bigint = null output,
    @row int = null output,
    @is_last bit = null output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    -- The number of a table's rows may be too large for it.
    declare @chunk int = case when @what = 'chunk' then @rows end;
<<calls>>
    if @what = 'chunk' set @rows = @chunk;
end
