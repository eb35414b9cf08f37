-- Detects table changes beneath feeds: a feed whose columns differ from those last seen gets the next resource version. Never waits: locked
-- feeds are left for a later call.
-- @name: of the feed; null for all. Tables that the caller does not see are skipped.
-- permission: public; it only records facts
create or alter procedure <<schema>>.[note_schemas] (@name nvarchar(128) = null)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    set rowcount 0;
    begin try
        -- Without changes nothing is written, so it also works on a read-only database.
        if exists (
            select 1 from <<schema>>.[feeds] as f with (readcommittedlock, rowlock, readpast)
            where (@name is null or f.name = @name) and <<schema>>.[columns_print](f.name, f.object_id) <> isnull(f.schema_print, 0x)
        )
            update f
            -- A feed not yet checked by anyone who sees its table has no fingerprint.
            set resource_version = f.resource_version + case when f.schema_print is null then 0 else 1 end,
                schema_print = <<schema>>.[columns_print](f.name, f.object_id)
            from <<schema>>.[feeds] as f with (readcommittedlock, rowlock, readpast)
            where (@name is null or f.name = @name) and <<schema>>.[columns_print](f.name, f.object_id) <> isnull(f.schema_print, 0x);
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
