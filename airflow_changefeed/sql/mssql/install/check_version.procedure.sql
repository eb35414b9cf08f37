-- Throws if a feed, or its capture, is not at the expected version. In the caller's transaction, under the set-up lock; note_schemas ran
-- before.
-- @resource_version: expected version; null passes.
-- errors: 77155
-- permission: internal
create or alter procedure <<schema>>.[check_version] (
    @feed_id int,
    @resource_version bigint
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @version bigint, @name nvarchar(128), @object_id int, @capture_id int, @present nvarchar(max), @message nvarchar(2048);
    if @resource_version is null return;
    select
        @name = f.name, @object_id = f.object_id,
        -- Changed within this transaction, or since note_schemas ran.
        @version = f.resource_version + case when <<schema>>.[columns_print](f.name, f.object_id) <> f.schema_print then 1 else 0 end
    from <<schema>>.[feeds] as f where f.feed_id = @feed_id;
    if @version = @resource_version return;
    if @version is null
    begin
        set @message = concat(N'changefeed 77155: the feed is at resource version 0 (it no longer exists), not ', @resource_version,
            N': nothing was changed. Read it again, then decide');
        throw 77155, @message, 1;
    end;
    select @capture_id = c.capture_id, @present = case c.is_enabled when 1 then N'enabled' else N'disabled' end
    from <<schema>>.[captures] as c where c.name = @name;
    if @capture_id is not null
    begin
        select @present = concat(@present, N', tables: ', string_agg(convert(nvarchar(max), concat(t.table_schema, N'.', t.table_name)), N', ') within group (order by t.table_no))
        from <<schema>>.[capture_tables] as t where t.capture_id = @capture_id;
        select @present = concat(@present, N'; not recorded as they are now: ', string_agg(convert(nvarchar(max), concat(N'column ', d.name, N' of ', d.of_table)), N', ')) from (
            select concat(t.table_schema, N'.', t.table_name) as of_table, s.name collate database_default as name
            from <<schema>>.[capture_tables] as t
            cross apply <<schema>>.[captured_columns](t.object_id) as s
            where t.capture_id = @capture_id and (t.insert_columns = N'[]' or t.update_columns = N'[]' or t.delete_columns = N'[]') and not exists (
                select 1 from <<schema>>.[capture_columns] as k
                where k.capture_id = t.capture_id and k.table_no = t.table_no and k.place = s.place and k.name = s.name collate database_default and k.definition = s.definition collate database_default)
            union
            select concat(t.table_schema, N'.', t.table_name), k.name
            from <<schema>>.[capture_tables] as t
            inner join <<schema>>.[capture_columns] as k on k.capture_id = t.capture_id and k.table_no = t.table_no
            where t.capture_id = @capture_id and not exists (
                select 1 from <<schema>>.[captured_columns](t.object_id) as s where s.place = k.place and s.name collate database_default = k.name)
        ) as d
        having count(*) > 0;
        select @present = concat(@present, N'; open gaps: ', count(*)) from <<schema>>.[capture_gaps] as g
        where g.capture_id = @capture_id and g.resolved_at is null
        having count(*) > 0;
    end
    else
    begin
        select @present = concat(f.kind, N', ', f.shard_key_type, N' shards, time tolerance ', convert(float, f.tolerance_ms) / 1000, N' s, max_hold ',
            case
                when f.max_hold_ms = -1 then N'forever'
                when f.max_hold_ms % 86400000 = 0 then concat(f.max_hold_ms / 86400000, N'd')
                when f.max_hold_ms % 3600000 = 0 then concat(f.max_hold_ms / 3600000, N'h')
                when f.max_hold_ms % 60000 = 0 then concat(f.max_hold_ms / 60000, N'm')
                when f.max_hold_ms % 1000 = 0 then concat(f.max_hold_ms / 1000, N's')
                else concat(f.max_hold_ms, N'ms') end)
        from <<schema>>.[feeds] as f where f.feed_id = @feed_id;
        select @present = concat(@present, N', columns: ', isnull(string_agg(convert(nvarchar(max), c.name), N', ') within group (order by c.column_id), N'none; the table is missing'))
        from sys.columns as c where c.object_id = @object_id;
    end;
    set @message = concat(
        N'changefeed 77155: ', case when @capture_id is null then N'feed' else N'capture' end, N' "', @name, N'" is at resource version ', @version,
        N' (', left(@present, 1000), N'), not ', @resource_version, N': nothing was changed.',
        case when @resource_version > @version then N' A version above the current one comes from another database, or from before this database was restored.' else N'' end,
        N' Read it again, then decide');
    throw 77155, @message, 1;
end
