-- Drops a feed with its order, cursors and marks, even if its table is missing. The event table stays, except that of a capture, which is
-- dropped with its triggers.
-- @table_name, or @table: the event table, or the feed's name (schema.table without quotes). @resource_version: expected version of the
--     feed; null skips the check.
-- errors: 77106 the feed does not exist. 77101 another set-up is running. 77155 it is at another @resource_version; nothing was dropped
-- permission: as for setup_feed
create or alter procedure <<schema>>.[drop_feed] (
    @table_name nvarchar(max) = null,
    @table nvarchar(max) = null,
    @resource_version bigint = null
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @given nvarchar(max) = isnull(@table_name, @table), @object_id int, @feed_id int, @name nvarchar(128), @message nvarchar(2048);
        declare @sql nvarchar(max), @place int, @sequence nvarchar(300);
        declare @drops table (place int not null identity(1, 1) primary key, sql nvarchar(max) not null);
        set @object_id = object_id(@given, N'U');
        if @object_id is not null
            select @feed_id = f.feed_id, @name = f.name, @sequence = f.sequence_name from <<schema>>.[feeds] as f
            where f.name = concat(object_schema_name(@object_id), N'.', object_name(@object_id));
        else
            select @feed_id = f.feed_id, @name = f.name, @sequence = f.sequence_name from <<schema>>.[feeds] as f where f.name = @given;
        if @feed_id is null
        begin
            set @message = concat(N'changefeed 77106: feed "', left(@given, 300), N'" not found in this database');
            throw 77106, @message, 1;
        end;
        if @@trancount = 0 exec <<schema>>.[note_schemas] @name = @name;
        begin transaction;
        exec <<schema>>.[lock_setup];
        -- The previous holder of the lock may have dropped it and created another with the same name.
        set @feed_id = null;
        select @feed_id = f.feed_id, @sequence = f.sequence_name from <<schema>>.[feeds] as f where f.name = @name;
        if @feed_id is null
        begin
            set @message = concat(N'changefeed 77106: feed "', @name, N'" no longer exists in this database');
            throw 77106, @message, 1;
        end;
        exec <<schema>>.[check_version] @feed_id = @feed_id, @resource_version = @resource_version;
        if exists (select 1 from <<schema>>.[captures] as c where c.name = @name)
            exec <<schema>>.[disable_capture] @capture = @name;

        -- Callers are dropped before what they call: the reverse order of creation.
        insert into @drops (sql)
        select concat(N'drop ', case t.type when 'table' then N'table' when 'view' then N'view' when 'procedure' then N'procedure' else N'function' end,
            N' if exists <<schema_in_text>>.', quotename(concat(t.object, N':', @name)))
        from <<schema>>.[templates]() as t
        where t.type in ('table', 'view', 'procedure', 'function')
            and object_id(concat(N'<<schema_in_text>>.', quotename(concat(t.object, N':', @name)))) is not null
            and (t.kind is null or t.kind = (select f.kind from <<schema>>.[feeds] as f where f.feed_id = @feed_id) or t.kind = 'capture')
        order by t.place desc;
        insert into @drops (sql)
        select concat(N'drop type <<schema_in_text>>.', quotename(concat(N'type:read:', @name)))
        where type_id(concat(N'<<schema_in_text>>.', quotename(concat(N'type:read:', @name)))) is not null;
        insert into @drops (sql) select concat(N'drop sequence ', @sequence) where @sequence is not null;
        -- For a capture: the objects of each table, and the recorded events.
        insert into @drops (sql)
        select concat(N'drop procedure <<schema_in_text>>.', quotename(concat(k.object, N'.', t.table_no, N':', @name)))
        from <<schema>>.[capture_tables] as t
        inner join <<schema>>.[captures] as c on c.capture_id = t.capture_id
        cross join (select x.object from <<schema>>.[capture_templates]() as x where x.type = 'procedure' and x.object <> 'capture_table') as k
        where c.name = @name and object_id(concat(N'<<schema_in_text>>.', quotename(concat(k.object, N'.', t.table_no, N':', @name)))) is not null;
        insert into @drops (sql)
        select concat(N'drop procedure <<schema_in_text>>.', quotename(concat(N'capture_table:', @name)))
        where object_id(concat(N'<<schema_in_text>>.', quotename(concat(N'capture_table:', @name)))) is not null;
        insert into @drops (sql)
        select concat(N'drop table ', quotename(object_schema_name(f.object_id)), N'.', quotename(object_name(f.object_id)))
        from <<schema>>.[feeds] as f
        where f.feed_id = @feed_id and object_name(f.object_id) is not null and exists (select 1 from <<schema>>.[captures] as c where c.name = @name);
        insert into @drops (sql)
        select concat(N'revoke select on <<schema_in_text>>.', r.object, N' from ', quotename(p.name))
        from sys.database_principals as p
        cross join (values (N'[readable_captures]'), (N'[readable_capture_tables]'), (N'[readable_capture_columns]'), (N'[readable_capture_gaps]')) as r (object)
        where p.name = N'<<schema_text>>.readers:' + @name and exists (select 1 from <<schema>>.[captures] as c where c.name = @name);
        -- A role must be empty before it is dropped, and hold no rights on remaining objects.
        insert into @drops (sql)
        select concat(N'revoke select on <<schema_in_text>>.[feeds] from ', quotename(p.name))
        from sys.database_principals as p where p.name = N'<<schema_text>>.readers:' + @name;
        insert into @drops (sql)
        select concat(N'revoke update on <<schema_in_text>>.[sequence] from ', quotename(p.name))
        from sys.database_principals as p where p.name = N'<<schema_text>>.writers:' + @name;
        insert into @drops (sql)
        select concat(N'alter role ', quotename(r.name), N' drop member ', quotename(m.name))
        from sys.database_role_members as x
        inner join sys.database_principals as r on r.principal_id = x.role_principal_id
        inner join sys.database_principals as m on m.principal_id = x.member_principal_id
        where r.name in (N'<<schema_text>>.readers:' + @name, N'<<schema_text>>.writers:' + @name,
            N'<<schema_text>>.operators:' + @name, N'<<role_prefix_text>>role:' + @name);
        insert into @drops (sql)
        select concat(N'drop ', case p.type when 'R' then N'role ' else N'user ' end, quotename(p.name))
        from sys.database_principals as p
        where p.name in (N'<<schema_text>>.readers:' + @name, N'<<schema_text>>.writers:' + @name,
            N'<<schema_text>>.operators:' + @name, N'<<role_prefix_text>>role:' + @name,
            N'<<schema_text>>.user.readers:' + @name);

        -- The schema guard is dropped with the last capture: without its procedure, nobody could alter a table.
        insert into @drops (sql)
        select N'drop trigger [<<schema_name_in_text>>_captures] on database'
        where exists (select 1 from sys.triggers as t where t.parent_class = 0 and t.name = N'<<schema_text>>_captures')
            and not exists (select 1 from <<schema>>.[captures] as c where c.name <> @name);
        insert into @drops (sql)
        select N'drop user [<<schema_name_in_text>>.guard]'
        where database_principal_id(N'<<schema_text>>.guard') is not null
            and not exists (select 1 from <<schema>>.[captures] as c where c.name <> @name);
        select top (1) @place = d.place, @sql = d.sql from @drops as d order by d.place;
        while @place is not null
        begin
            exec sys.sp_executesql @sql;
            delete from @drops where place = @place;
            set @place = null;
            select top (1) @place = d.place, @sql = d.sql from @drops as d order by d.place;
        end;
        delete from <<schema>>.[dropped_consumers] where feed = @name and (
            consumer in (select s.consumer from <<schema>>.[consumer_settings] as s where s.feed_id = @feed_id)
            or consumer in (select c.consumer from <<schema>>.[consumers] as c where c.feed_id = @feed_id));
        insert into <<schema>>.[dropped_consumers] (feed, consumer, resource_version)
        select @name, v.consumer, max(v.resource_version) from (
            select s.consumer, s.resource_version from <<schema>>.[consumer_settings] as s where s.feed_id = @feed_id
            union all
            select c.consumer, c.resource_version from <<schema>>.[consumers] as c where c.feed_id = @feed_id
        ) as v
        group by v.consumer;
        delete from <<schema>>.[consumer_settings] where feed_id = @feed_id;
        delete from <<schema>>.[consumers] where feed_id = @feed_id;
        delete from <<schema>>.[dead_letters] where feed_id = @feed_id;
        delete from <<schema>>.[invocations] where feed_id = @feed_id;
        delete from <<schema>>.[lease_waiters] where feed_id = @feed_id;
        delete from <<schema>>.[cursor_history] where feed_id = @feed_id;
        delete from <<schema>>.[acknowledged] where feed_id = @feed_id;
        delete from <<schema>>.[output_checks] where feed_id = @feed_id;
        delete from <<schema>>.[capture_gaps] where capture_id in (select c.capture_id from <<schema>>.[captures] as c where c.name = @name);
        delete from <<schema>>.[capture_columns] where capture_id in (select c.capture_id from <<schema>>.[captures] as c where c.name = @name);
        delete from <<schema>>.[capture_tables] where capture_id in (select c.capture_id from <<schema>>.[captures] as c where c.name = @name);
        delete from <<schema>>.[captures] where name = @name;
        delete from <<schema>>.[stale_marks] where feed_id = @feed_id;
        delete from <<schema>>.[writer_locks] where feed_id = @feed_id;
        delete from <<schema>>.[dropped_feeds] where name = @name;
        insert into <<schema>>.[dropped_feeds] (name, resource_version)
        select f.name, f.resource_version from <<schema>>.[feeds] as f where f.feed_id = @feed_id;
        delete from <<schema>>.[feeds] where feed_id = @feed_id;
        -- In the order in which begin_snapshot locks them: it waits here, or has begun.
        delete from <<schema>>.[snapshots] where feed_id = @feed_id;
        delete from <<schema>>.[snapshot_marks] where feed_id = @feed_id;
        commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
