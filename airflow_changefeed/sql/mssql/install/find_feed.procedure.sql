-- Finds the feed that a procedure common to all feeds is about, among those that the caller may read.
-- @feed: its name; returned as the feed was set up. @is_operator: 1 asks for the right to seal the feed, too.
-- errors: 77106 no such feed, or the caller may not read it, in the same words. 77117 its upgrade failed. 77157 the caller may not seal it
-- permission: internal
create or alter procedure <<schema>>.[find_feed] (@feed nvarchar(128) output, @feed_id int output, @is_operator bit = 0)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @message nvarchar(2048), @name nvarchar(128), @problem nvarchar(2000);
    set @feed_id = null;
    select @feed_id = f.feed_id, @name = f.name, @problem = f.upgrade_problem from <<schema>>.[readable_feeds] as f where f.name = @feed;
    if @feed_id is null
    begin
        set @message = concat(N'changefeed 77106: feed "', @feed,
            N'" not found in this database, or you may not read it; correct the name, or ask a DBA to make you a member of the role <<schema_text>>.readers:', @feed);
        throw 77106, @message, 1;
    end;
    set @feed = @name;
    if @problem is not null
    begin
        set @message = concat(N'changefeed 77117: feed "', @feed, N'" could not be upgraded to the installed version of changefeed: ', left(@problem, 1600),
            N'. Fix the problem, then upgrade the feed (upgrade_feed)');
        throw 77117, @message, 1;
    end;
    if @is_operator = 1
        and isnull(has_perms_by_name(concat(N'<<schema_in_text>>.', quotename(concat(N'seal_feed:', @feed))), N'OBJECT', N'EXECUTE'), 0) = 0
    begin
        set @message = concat(N'changefeed 77157: only operators of feed "', @feed,
            N'" may do this; ask a DBA to make you a member of the role <<schema_text>>.operators:', @feed);
        throw 77157, @message, 1;
    end;
end
