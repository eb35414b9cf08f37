-- SPDX-License-Identifier: Apache-2.0
-- What each feed of mssql-changefeed v2 has, written from its documented shape and simplified.
-- Certificates are left out: what they reach is reached by ownership.
create table [changefeed].[state:<<name>>] (
    shard_id int not null,
    time datetime2(3) not null,
    ulid_high binary(8) not null,
    ulid_low bigint not null,
    ulid as ulid_high + convert(binary(8), ulid_low),
    constraint [pk:state:<<name>>] primary key (shard_id)
);
go
create procedure [changefeed].[feed_write_lock:<<name>>] (
    @shard_id int,
    @lock_timeout int = -1,
    @lock_result int output
)
as
begin
    declare @resource varchar(255) = concat('changefeed/<<object_id>>/', @shard_id);
    exec @lock_result = sp_getapplock
        @Resource = @resource, @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = @lock_timeout;
end
go
create procedure [changefeed].[update_state:<<name>>] (
    @shard_id int,
    @time_hint datetime2(3),
    @count bigint,
    @previous_time datetime2(3) = null output,
    @previous_ulid_high binary(8) = null output,
    @previous_ulid_low bigint = null output,
    @next_time datetime2(3) = null output,
    @next_ulid_high binary(8) = null output,
    @next_ulid_low bigint = null output
)
as
begin
    set xact_abort, nocount on;
    declare @random binary(10) = crypt_gen_random(10);
    set @previous_time = null;
    -- Takes the row's lock also where updlock does not.
    update [changefeed].[state:<<name>>] set ulid_low = ulid_low where shard_id = @shard_id;
    select @previous_time = s.time, @previous_ulid_high = s.ulid_high, @previous_ulid_low = s.ulid_low
    from [changefeed].[state:<<name>>] as s with (updlock, serializable, rowlock)
    where s.shard_id = @shard_id;
    set @next_time = @previous_time;
    set @next_ulid_high = @previous_ulid_high;
    set @next_ulid_low = @previous_ulid_low;
    if @previous_time is null or @time_hint > @previous_time
    begin
        set @next_time = @time_hint;
        set @next_ulid_high = convert(binary(8),
            convert(binary(6), datediff_big(millisecond, '1970-01-01', @time_hint)) + substring(@random, 1, 2));
        -- Without its second highest bit, so that counting on overflows nowhere; the highest stays: half of them are negative.
        set @next_ulid_low = convert(bigint, convert(binary(8), substring(@random, 3, 8))) & -4611686018427387905;
    end;
    if @previous_time is null
        insert into [changefeed].[state:<<name>>] (shard_id, time, ulid_high, ulid_low)
        values (@shard_id, @next_time, @next_ulid_high, @next_ulid_low + @count);
    else
        update [changefeed].[state:<<name>>]
        set time = @next_time, ulid_high = @next_ulid_high, ulid_low = @next_ulid_low + @count
        where shard_id = @shard_id;
end
go
create role [changefeed.writers:<<name>>];
