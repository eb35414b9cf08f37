-- SPDX-License-Identifier: Apache-2.0
-- What a feed of mssql-changefeed v2 in outbox mode has besides; of a table with the key (AggregateID, Version).
create sequence [changefeed].[<<sequence>>] as bigint start with 1 increment by 1 <<cache>>;
go
create table [changefeed].[feed:<<name>>] (
    shard_id int not null,
    ulid binary(16) not null,
    AggregateID bigint not null,
    Version int not null,
    constraint [pk:feed:<<name>>] primary key (shard_id, ulid)
) with (data_compression = page);
go
create table [changefeed].[outbox:<<name>>] (
    shard_id int not null constraint [def:outbox.shard_id:<<name>>] default 0,
    order_sequence bigint not null
        constraint [def:outbox.order_sequence:<<name>>] default (next value for [changefeed].[<<sequence>>]),
    time_hint datetime2(3) not null,
    AggregateID bigint not null,
    Version int not null,
    constraint [pk:outbox:<<name>>] primary key (shard_id, order_sequence)
) with (data_compression = page);
go
create type [changefeed].[type:read:<<name>>] as table (
    ulid binary(16) not null,
    AggregateID bigint not null,
    Version int not null
);
go
create procedure [changefeed].[read_feed:<<name>>] (
    @shard_id int,
    @cursor binary(16),
    @pagesize int = 1000
)
as
begin
    set xact_abort, nocount on;
    begin try
        if @@trancount > 0 throw 77100, 'Please call this procedure outside of any transaction', 0;
        declare @result int, @count bigint, @max_time datetime2(3);
        declare @previous_time datetime2(3), @previous_high binary(8), @previous_low bigint;
        declare @next_high binary(8), @next_low bigint;
        declare @taken table (
            order_sequence bigint not null primary key, time_hint datetime2(3) not null,
            AggregateID bigint not null, Version int not null
        );
        delete from #read;
        insert into #read (ulid, AggregateID, Version)
        select top (@pagesize) f.ulid, f.AggregateID, f.Version from [changefeed].[feed:<<name>>] as f
        where f.shard_id = @shard_id and f.ulid > @cursor order by f.ulid;
        if @@rowcount > 0 return;

        begin transaction;
        exec [changefeed].[feed_write_lock:<<name>>] @shard_id = @shard_id, @lock_result = @result output;
        if @result < 0 throw 77100, 'Error getting lock', 1;
        insert into #read (ulid, AggregateID, Version)
        select top (@pagesize) f.ulid, f.AggregateID, f.Version from [changefeed].[feed:<<name>>] as f
        where f.shard_id = @shard_id and f.ulid > @cursor order by f.ulid;
        if @@rowcount = 0
        begin
            insert into @taken (order_sequence, time_hint, AggregateID, Version)
            select top (@pagesize) o.order_sequence, o.time_hint, o.AggregateID, o.Version
            from [changefeed].[outbox:<<name>>] as o
            where o.shard_id = @shard_id order by o.order_sequence;
            select @count = count(*), @max_time = max(t.time_hint) from @taken as t;
            if @count > 0
            begin
                exec [changefeed].[update_state:<<name>>]
                    @shard_id = @shard_id, @time_hint = @max_time, @count = @count,
                    @previous_time = @previous_time output, @previous_ulid_high = @previous_high output,
                    @previous_ulid_low = @previous_low output,
                    @next_ulid_high = @next_high output, @next_ulid_low = @next_low output;
                insert into [changefeed].[feed:<<name>>] (shard_id, ulid, AggregateID, Version)
                select
                    @shard_id,
                    convert(binary(16), convert(binary(8), case
                        when @previous_time is null or n.time > @previous_time
                            then convert(binary(8), convert(binary(6), datediff_big(millisecond, '1970-01-01', n.time)) + 0x0000)
                        else @previous_high
                    end) + convert(binary(8), n.place - 1 + case
                        when @previous_time is null or n.time > @previous_time then @next_low
                        else @previous_low
                    end)),
                    n.AggregateID, n.Version
                from (
                    select t.*, row_number() over (order by t.order_sequence) as place,
                        max(t.time_hint) over (order by t.order_sequence rows between unbounded preceding and current row) as time
                    from @taken as t
                ) as n;
                delete o from [changefeed].[outbox:<<name>>] as o
                inner join @taken as t on t.order_sequence = o.order_sequence
                where o.shard_id = @shard_id;
                insert into #read (ulid, AggregateID, Version)
                select f.ulid, f.AggregateID, f.Version from [changefeed].[feed:<<name>>] as f
                where f.shard_id = @shard_id and f.ulid > @cursor;
            end;
        end;
        commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
go
create role [changefeed.readers:<<name>>];
go
grant execute on [changefeed].[read_feed:<<name>>] to [changefeed.readers:<<name>>];
go
grant insert on [changefeed].[outbox:<<name>>] to [changefeed.writers:<<name>>];
