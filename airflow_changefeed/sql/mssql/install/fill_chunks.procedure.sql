-- Adds to the caller's #tokens how capture_snapshot.N:T finds the next rows: in the order of the primary key, behind the row of an event.
-- Without a primary key, or if the capture does not record all of it, all rows are one chunk.
-- @events: the capture's table, as T-SQL.
-- permission: internal
create or alter procedure <<schema>>.[fill_chunks] (
    @capture_id int,
    @table_no smallint,
    @events nvarchar(300)
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @object_id int, @count int, @place int, @table nvarchar(600), @read nvarchar(900), @where nvarchar(max), @steps nvarchar(max) = N'';
    declare @names nvarchar(max), @own nvarchar(max), @stored nvarchar(max), @behind nvarchar(max), @same nvarchar(max), @definitions nvarchar(max);
    declare @keys table (place int not null primary key, name nvarchar(300) not null, stored nvarchar(300) null, definition nvarchar(max) not null);
    select @object_id = t.object_id, @table = concat(quotename(t.table_schema), N'.', quotename(t.table_name))
    from <<schema>>.[capture_tables] as t
    where t.capture_id = @capture_id and t.table_no = @table_no;
    insert into @keys (place, name, stored, definition)
    select k.place, quotename(k.name), quotename(c.stored_name), k.definition
    from <<schema>>.[key_columns](@object_id) as k
    inner join sys.columns as s on s.object_id = @object_id and s.name = k.name
    left join (
        <<schema>>.[capture_columns] as c
        inner join <<schema>>.[capture_tables] as t on t.capture_id = c.capture_id and t.table_no = c.table_no
    ) on c.capture_id = @capture_id and c.table_no = @table_no and c.place = s.column_id
        and 1 = case when t.insert_columns is not null then c.on_insert when t.update_columns is not null then c.on_update else c.on_delete end;
    select @count = count(*) from @keys as k
    where not exists (select 1 from @keys as o where o.stored is null);
    if @count = 0
    begin
        insert into #tokens (token, value) values
            ('chunk_keys', N''),
            ('chunk_rows', concat(@table, N' as i with (tablock, holdlock)')),
            ('chunk_end', N'    set @is_last = 1;');
        return;
    end;
    select
        @names = string_agg(convert(nvarchar(max), k.name), N', ') within group (order by k.place),
        @own = string_agg(convert(nvarchar(max), N'i.' + k.name), N', ') within group (order by k.place),
        @stored = string_agg(convert(nvarchar(max), N'e.' + k.stored), N', ') within group (order by k.place),
        @behind = string_agg(convert(nvarchar(max), N'e.' + k.stored + N' desc'), N', ') within group (order by k.place),
        @same = string_agg(convert(nvarchar(max), concat(N'i.', k.name, N' = k.', k.name)), N' and ') within group (order by k.place),
        @definitions = string_agg(convert(nvarchar(max), k.definition), N', ') within group (order by k.place)
    from @keys as k;
    set @read = concat(@table, N' as i with (holdlock)');
    -- One step for each column of the key, from the last to the first. Each is an exact range of the index: a condition on all columns at
    -- once would read, and so lock, all rows with the same first column.
    set @place = @count;
    while @place > 0
    begin
        select @where = string_agg(convert(nvarchar(max), concat(N'i.', k.name, case when k.place < @place then N' = ' else N' > ' end, N'p.', k.name)), N' and ')
            within group (order by k.place)
        from @keys as k where k.place <= @place;
        set @steps = concat(@steps, N'
    if @left > 0 and @statement is not null
    begin
        insert into @keys (', @names, N')
        select top (@left) ', @own, N' from @behind as p inner loop join ', @read, N' on ', @where, N' order by ', @own, N';
        set @left = @left - @@rowcount;
    end;');
        set @place = @place - 1;
    end;
    insert into #tokens (token, value) values
        ('chunk_keys', concat(N'    declare @keys table (', @definitions, N', primary key nonclustered (', @names, N'));
    declare @behind table (', @definitions, N');
    if @statement is null
    begin
        insert into @keys (', @names, N')
        select top (@left) ', @own, N' from ', @read, N' order by ', @own, N';
        set @left = @left - @@rowcount;
    end
    else
    begin
        insert into @behind (', @names, N')
        select ', @stored, N' from ', @events, N' as e
        where e.changefeed_statement = @statement and e.changefeed_row = @row and e.changefeed_image = 1;
        -- That event was purged: nobody knows where to go on.
        if @@rowcount = 0
        begin
            set @rows = null;
            return;
        end;
    end;', @steps)),
        ('chunk_rows', concat(N'@keys as k inner loop join ', @read, N' on ', @same)),
        ('chunk_end', concat(N'    set @is_last = case when @left > 0 then 1 else 0 end;
    select top (1) @row = e.changefeed_row
    from ', @events, N' as e
    where e.changefeed_statement = @statement and e.changefeed_image = 1
    order by ', @behind, N';'));
end
