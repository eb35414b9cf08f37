-- Upgrades every feed to this version, one by one, including those of mssql-changefeed v2; feeds whose table is missing are skipped.
-- A failure does not stop the others: its reason is stored with the feed, and all failed feeds are named at the end.
-- In a caller's transaction, which the first error dooms, it stops at that error.
-- errors: 77117 the failed feeds, with reasons; the others are upgraded, and repeating continues
-- permission: as for setup_feed
create or alter procedure <<schema>>.[upgrade_feeds]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    set rowcount 0;
    declare @found table (
        object_id int not null primary key, name nvarchar(300) not null, kind varchar(10) not null, ulid_column nvarchar(128) null,
        shard_column nvarchar(128) null, reason nvarchar(2048) null, is_done bit not null);
    declare @object_id int, @table nvarchar(300), @outbox bit, @serialized bit, @ulid_column sysname, @shard_column sysname;
    declare @is_own bit = case when @@trancount = 0 then 1 else 0 end, @message nvarchar(2048), @reason nvarchar(2048), @failed int, @all int;
    -- After the import of a BACPAC the number of a table is nobody's, or of anything. A capture then needs new triggers and procedures
    -- (upgrade_captures), and that its present triggers are others is a gap.
    declare @moved table (capture_id int not null, table_no smallint not null, object_id int not null, primary key (capture_id, table_no));
    insert into @moved (capture_id, table_no, object_id)
    select t.capture_id, t.table_no, o.object_id
    from <<schema>>.[capture_tables] as t
    inner join <<schema>>.[captures] as c on c.capture_id = t.capture_id
    cross apply (select object_id(concat(quotename(t.table_schema), N'.', quotename(t.table_name)), N'U') as object_id) as o
    where o.object_id <> t.object_id and (isnull(objectproperty(t.object_id, 'IsUserTable'), 0) = 0
        -- Another table has the number, and the one of the name the triggers; of a renamed table it would be the other way round.
        or exists (
            select 1 from sys.triggers as r
            where r.parent_id = o.object_id and r.name collate database_default in (
                concat(N'capture_insert.', t.table_no, N':', c.name),
                concat(N'capture_update.', t.table_no, N':', c.name),
                concat(N'capture_delete.', t.table_no, N':', c.name))));
    update c set version = '' from <<schema>>.[captures] as c where exists (select 1 from @moved as m where m.capture_id = c.capture_id);
    update t set object_id = m.object_id
    from <<schema>>.[capture_tables] as t
    inner join @moved as m on m.capture_id = t.capture_id and m.table_no = t.table_no;
    insert into @found (object_id, name, kind, ulid_column, shard_column, is_done)
    select
        t.object_id,
        concat(s.name, N'.', t.name),
        case when f.kind is not null then f.kind
            when object_id(N'<<schema_in_text>>.' + quotename(concat(N'outbox:', s.name, N'.', t.name))) is not null then 'outbox'
            else 'serialized' end,
        f.ulid_column,
        f.shard_column,
        0
    from sys.tables as t
    inner join sys.schemas as s on s.schema_id = t.schema_id
    left join <<schema>>.[feeds] as f on f.name = concat(s.name, N'.', t.name) collate database_default
    where (f.object_id = t.object_id or f.object_id is null
            or concat(object_schema_name(f.object_id), N'.', object_name(f.object_id)) <> f.name collate database_default)
        -- Null for a name beyond 128 characters, which no feed has.
        and object_id(N'<<schema_in_text>>.' + quotename(concat(N'state:', s.name, N'.', t.name))) is not null;
    select top (1) @object_id = f.object_id from @found as f where f.is_done = 0 order by f.object_id;
    while @object_id is not null
    begin
        select
            @table = concat(quotename(object_schema_name(f.object_id)), N'.', quotename(object_name(f.object_id))),
            @outbox = case when f.kind = 'outbox' then 1 else 0 end,
            @serialized = case when f.kind = 'outbox' then 0 else 1 end,
            @ulid_column = f.ulid_column,
            @shard_column = f.shard_column
        from @found as f where f.object_id = @object_id;
        set @reason = null;
        begin try
            exec <<schema>>.[set_up]
                @table_name = @table, @outbox = @outbox, @serialized = @serialized, @ulid_column = @ulid_column, @shard_column = @shard_column,
                @must_exist = 1;
        end try
        begin catch
            set @reason = error_message();
            if @@trancount > 0 rollback;
            if @is_own = 0 throw;
            update <<schema>>.[feeds] set upgrade_problem = left(@reason, 2000)
            where name = (select f.name from @found as f where f.object_id = @object_id);
        end catch;
        update @found set is_done = 1, reason = @reason where object_id = @object_id;
        set @object_id = null;
        select top (1) @object_id = f.object_id from @found as f where f.is_done = 0 order by f.object_id;
    end;
    select @failed = count(f.reason), @all = count(*) from @found as f;
    if @failed = 0 return;
    -- All reasons share the length of a message.
    select @message = string_agg(convert(nvarchar(max), concat(N'"', f.name, N'": ', left(f.reason, 1600 / @failed))), N'; ') within group (order by f.name)
    from @found as f where f.reason is not null;
    set @message = concat(N'changefeed 77117: ', @failed, N' of ', @all, N' feeds could not be upgraded, and are refused until upgraded: ',
        left(@message, 1700), N'. The others are upgraded. Fix each problem, then run the install script again, or upgrade_feed');
    throw 77117, @message, 1;
end
