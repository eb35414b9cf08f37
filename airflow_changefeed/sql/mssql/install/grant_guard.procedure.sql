-- Grants the schema guard what it needs to record added columns itself: for each table of a capture that evolves, to alter the table (its
-- triggers), the capture's table and the procedure that records existing rows, and to record the change. Revokes it of all other tables.
-- permission: internal; needs the right to grant it
create or alter procedure <<schema>>.[grant_guard]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @sql nvarchar(max);
    declare @needed table (name nvarchar(600) not null, object_id int null, permission varchar(10) not null);
    insert into @needed (name, object_id, permission)
    select n.name, object_id(n.name), n.permission
    from <<schema>>.[captures] as c
    inner join <<schema>>.[feeds] as f on f.name = c.name
    inner join <<schema>>.[capture_tables] as t on t.capture_id = c.capture_id
    cross apply (
        select concat(quotename(t.table_schema), N'.', quotename(t.table_name)) as name, 'alter' as permission
        union all
        select concat(quotename(object_schema_name(f.object_id)), N'.', quotename(object_name(f.object_id))), 'alter'
        union all
        select concat(N'<<schema_in_text>>.', quotename(concat(N'capture_snapshot.', t.table_no, N':', c.name))), 'alter'
        union all
        select concat(N'<<schema_in_text>>.', quotename(concat(N'capture_ddl.', t.table_no, N':', c.name))), 'execute'
    ) as n
    where c.is_enabled = 1 and c.guard_schema = 1 and c.on_ddl = 'evolve';
    select @sql = string_agg(convert(nvarchar(max), g.sql), N' ')
    from (
        select distinct concat(N'grant ', n.permission, N' on ', n.name, N' to [<<schema_name_in_text>>.guard];') as sql
        from @needed as n where n.object_id is not null
        union all
        select concat(N'revoke alter on ', quotename(object_schema_name(p.major_id)), N'.', quotename(object_name(p.major_id)), N' from [<<schema_name_in_text>>.guard];')
        from sys.database_permissions as p
        where p.grantee_principal_id = database_principal_id(N'<<schema_text>>.guard') and p.class = 1 and p.type = 'AL'
            and not exists (select 1 from @needed as n where n.object_id = p.major_id and n.permission = 'alter')
    ) as g;
    if @sql is not null exec sys.sp_executesql @sql;
end
