-- Locks a captured table against writers, counts its rows, and what was recorded of it, at one moment. In the caller's
-- transaction, which keeps the lock.
-- @rows: of the table. @gained: by what was recorded since its base was taken.
-- errors: 1222 an open transaction has changed the table; 77101 drains were always at work; both transient
-- permission: internal
create procedure <<schema>>.[capture_gained:<<name>>] (
    @table_no smallint,
    @rows bigint output,
    @gained bigint output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @round int = 0, @again bigint;
    -- Writers wait behind this lock, so it is not waited for long.
    set lock_timeout 2000;
    exec <<schema>>.[capture_table:<<name>>] @table_no = @table_no, @what = 'counted', @rows = @rows output;
    while @round < 50
    begin
        exec <<schema>>.[capture_unordered:<<name>>] @table_no = @table_no, @is_dirty = 0, @rows = @gained output;
        exec <<schema>>.[capture_unordered:<<name>>] @table_no = @table_no, @is_dirty = 0, @rows = @again output;
        if @gained = @again return;
        set @round = @round + 1;
    end;
    throw 77101, N'changefeed 77101: feed "<<name_text>>": drains were at work all the time while a captured table was compared with what was recorded. Retry', 1;
end
