-- Returns what is wrong with the triggers of a captured table, or with what they record; null if they are unchanged.
-- permission: internal
create or alter procedure <<schema>>.[capture_settings:<<name>>] (
    @table_no smallint,
    @reason nvarchar(2000) output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @id int, @object_id int, @schema nvarchar(128), @table nvarchar(128), @count int, @modified varchar(200), @found int, @last datetime;
    set @reason = null;
    select @id = t.capture_id, @object_id = t.object_id, @schema = t.table_schema, @table = t.table_name, @count = t.trigger_count, @modified = t.trigger_modified
    from <<schema>>.[capture_tables] as t
    inner join <<schema>>.[captures] as c on c.capture_id = t.capture_id
    where c.name = N'<<name_text>>' and t.table_no = @table_no;
    if object_name(@object_id) is null or object_name(@object_id) <> @table or object_schema_name(@object_id) <> @schema
    begin
        set @reason = N'the table was dropped or renamed';
        return;
    end;
    select @found = count(*), @last = max(case when charindex(t.stamp, @modified) = 0 then t.modify_date end)
    from <<schema>>.[capture_triggers] as t
    where t.capture_id = @id and t.table_no = @table_no and t.is_disabled = 0;
    if @found < @count
        set @reason = N'a trigger of the capture is disabled or was dropped';
    else if @last is not null
        set @reason = concat(N'a trigger of the capture was altered, or was disabled for a while, at ', convert(varchar(19), @last, 120), N' (server time)');
    else if exists (select 1 from sys.configurations as o where o.name = N'nested triggers' and convert(int, o.value_in_use) = 0)
        and exists (
            select 1 from sys.triggers as t
            where t.parent_class = 1 and t.is_disabled = 0 and not exists (select 1 from <<schema>>.[capture_triggers] as k where k.trigger_id = t.object_id))
        set @reason = N'the server''s option "nested triggers" is off: changes by other triggers are not recorded';
    else
        -- The triggers know columns by name, and a column keeps its number for life.
        select @reason = concat(N'another column now has the name of a recorded one, and is recorded in its place: ', left(string_agg(convert(nvarchar(max), k.name), N', '), 1000))
        from <<schema>>.[capture_columns] as k
        inner join sys.columns as s on s.object_id = @object_id and s.name = k.name collate database_default
        where k.capture_id = @id and k.table_no = @table_no and s.column_id <> k.place and (k.on_insert = 1 or k.on_update = 1 or k.on_delete = 1)
        having count(*) > 0;
end
