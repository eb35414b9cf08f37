-- Upgrades existing feeds and captures to this version, including feeds of mssql-changefeed v2. One that fails stops no other.
-- An open writer of one table would hold up all others without end.
if @@lock_timeout = -1 set lock_timeout 60000;
declare @feeds nvarchar(2048), @captures nvarchar(2048), @message nvarchar(2048);
begin try
    exec <<schema>>.[upgrade_feeds];
end try
begin catch
    if @@trancount > 0 rollback;
    set @feeds = error_message();
end catch;
begin try
    exec <<schema>>.[upgrade_captures];
end try
begin catch
    if @@trancount > 0 rollback;
    set @captures = error_message();
end catch;
set @message = left(concat(N'changefeed 77117: ', replace(@feeds, N'changefeed 77117: ', N''), N'; ' + @captures), 2044);
if @feeds is not null throw 77117, @message, 1;
set @message = left(concat(N'changefeed 77160: ', replace(@captures, N'changefeed 77160: ', N'')), 2044);
if @captures is not null throw 77160, @message, 1;
