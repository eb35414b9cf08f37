-- Notes what changed beneath feeds: a feed whose columns are no longer those that were last seen gets the next resource
-- version. Waits for nobody: what somebody has locked is noted by a later look.
-- @name: of the feed; null takes all. Tables that the caller does not see are passed over.
-- permission: public; it writes down what is so
create procedure <<schema>>.[note_schemas] (@name nvarchar(128) = null)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    set rowcount 0;
    begin try
        -- A look that finds nothing writes nothing, as where nothing can be written.
        if exists (
            select 1 from <<schema>>.[feeds] as f with (readcommittedlock, rowlock, readpast)
            where (@name is null or f.name = @name) and <<schema>>.[columns_print](f.name, f.object_id) <> isnull(f.schema_print, 0x)
        )
            update f
            -- One that nobody looked at who sees the table has no print yet.
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
