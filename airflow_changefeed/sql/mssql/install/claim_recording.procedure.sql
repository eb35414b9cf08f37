-- Begins to record the rows that a captured table already has, in the caller's transaction: a snapshot whose path is empty. record_rows:T
-- goes on with it. One of the table that has begun, begins again.
-- @by: who, as free text.
-- errors: 77158 a snapshot of the table runs into an output
-- permission: internal
create or alter procedure <<schema>>.[claim_recording] (@capture nvarchar(128), @table_no smallint, @by nvarchar(256))
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @feed_id int, @table nvarchar(257), @path nvarchar(4000), @expires_at datetime2(3), @sql nvarchar(max), @message nvarchar(2048);
    select @feed_id = f.feed_id, @table = concat(t.table_schema, N'.', t.table_name)
    from <<schema>>.[feeds] as f
    inner join <<schema>>.[captures] as c on c.name = f.name
    inner join <<schema>>.[capture_tables] as t on t.capture_id = c.capture_id
    where f.name = @capture and t.table_no = @table_no;
    select @path = s.path, @expires_at = s.expires_at
    from <<schema>>.[snapshots] as s with (updlock, holdlock)
    where s.feed_id = @feed_id and s.table_name = @table;
    if @path <> N'' and @expires_at > <<schema>>.[now]()
    begin
        set @message = concat(N'changefeed 77158: a snapshot of table "', @table, N'" of feed "', @capture, N'" into ', left(@path, 1000),
            N' has not ended. Finish it, or give it up: airflow-changefeed snapshot give-up --feed "', @capture, N'" --table "', @table, N'" --conn-id ...');
        throw 77158, @message, 1;
    end;
    delete from <<schema>>.[snapshots] where feed_id = @feed_id and table_name = @table;
    delete from <<schema>>.[snapshot_marks] where feed_id = @feed_id and table_name = @table;
    insert into <<schema>>.[snapshots] (feed_id, table_name, token, path, begin_time, begun_by, expires_at, where_text)
    values (@feed_id, @table, convert(nvarchar(36), newid()), N'', <<schema>>.[now](), @by, <<schema>>.[later](<<schema>>.[now](), 345600), N'');
end
