-- Records what a look at the files of an export's output found; the newest of each consumer is kept. Nothing is recorded for a consumer
-- without a cursor. No resource version grows.
-- @path: root of the output, without secrets. @checked_at: UTC, when the look began; taken down to the database's clock. @by: who looked,
--     as free text. @missing: ranges that should be complete and are not. @first_missing: begin of the first of them; null for none.
-- errors: as find_feed
-- permission: readers of the feed
create or alter procedure <<schema>>.[record_check] (
    @feed nvarchar(128),
    @consumer nvarchar(128),
    @path nvarchar(4000),
    @checked_at datetime2(3),
    @by nvarchar(256),
    @missing bigint,
    @first_missing datetime2(3) = null
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @is_own bit = case when @@trancount = 0 then 1 else 0 end, @feed_id int, @now datetime2(3) = <<schema>>.[now](), @version bigint;
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
        if @checked_at > @now set @checked_at = @now;
        if @is_own = 1 begin transaction;
        -- Two who record at once wait for each other here, and whoever drops the consumer for both.
        select top (1) @version = c.resource_version from <<schema>>.[consumers] as c with (updlock, rowlock)
        where c.feed_id = @feed_id and c.consumer = @consumer
        order by c.shard;
        if @version is not null
        begin
            update <<schema>>.[output_checks]
            set path = @path, checked_at = @checked_at, checked_by = @by, missing = @missing, first_missing = @first_missing
            where feed_id = @feed_id and consumer = @consumer and checked_at <= @checked_at;
            if @@rowcount = 0 and not exists (
                select 1 from <<schema>>.[output_checks] as o where o.feed_id = @feed_id and o.consumer = @consumer
            )
                insert into <<schema>>.[output_checks] (feed_id, consumer, path, checked_at, checked_by, missing, first_missing)
                values (@feed_id, @consumer, @path, @checked_at, @by, @missing, @first_missing);
        end;
        if @is_own = 1 commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
