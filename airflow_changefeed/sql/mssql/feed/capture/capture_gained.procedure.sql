-- Locks a captured table against writers, counts its rows, and what was recorded of it, at one moment. In the caller's
-- transaction, which keeps the lock.
-- @rows: of the table. @gained: by what was recorded since its base was taken.
-- @expected: the difference that is right; where another one is found, it is looked at again. null takes any.
-- errors: 77101 somebody was always at work; transient
-- permission: internal
create procedure <<schema>>.[capture_gained:<<name>>] (
    @table_no smallint,
    @expected bigint = null,
    @rows bigint output,
    @gained bigint output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @round int = 0, @wrong int = 0, @again bigint;
    while @round < 50
    begin
        exec <<schema>>.[capture_unordered:<<name>>] @table_no = @table_no, @is_dirty = 0, @rows = @gained output;
        exec <<schema>>.[capture_table:<<name>>] @table_no = @table_no, @what = 'rows', @is_exact = 1, @rows = @rows output;
        exec <<schema>>.[capture_unordered:<<name>>] @table_no = @table_no, @is_dirty = 0, @rows = @again output;
        if @gained = @again
        begin
            if @expected is null or @rows - @gained = @expected return;
            set @wrong = @wrong + 1;
            if @wrong = 3 return;
        end;
        set @round = @round + 1;
    end;
    throw 77101, N'changefeed 77101: feed "<<name_text>>": drains were at work all the time while a captured table was compared with what was recorded. Retry', 1;
end
