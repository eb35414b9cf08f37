-- Moves a consumer's cursor in a shard under its lease, as the last statement of the transaction that does the work, so that both commit or
-- neither does. Outside a transaction it runs in its own.
--
-- A consumer in T-SQL: create_consumer once, with its shards; acquire_leases with @all_or_none = 1, @fencing_token and
-- @cursor output; read_feed after the cursor into #read; then
--     begin transaction;
--     -- the work, for the events in #read
--     exec changefeed.[consume_events:T] @consumer = N'me', @shard_id = 0, @upto = @last, @fencing_token = @token, @seconds = 60;
--     commit;
-- An error of this procedure also rolls back the work. The work must not commit or roll back; nested pairs of begin and commit, and
-- savepoints, are fine.
--
-- @upto: inclusive, the new cursor; null or a lower one keeps the current one, for example to consume only a dead letter.
--     @fencing_token: of the newest lease, expired or not. @seconds: renews the lease, from now; null leaves it. @expected_version: of the
--     row; null skips the check. @transaction_id: current_transaction_id() when the caller began its only transaction; null skips the
--     check.
-- @first_ulid, @last_ulid, @events, @attempt, @started_at, @outcome, @error: for the log, if @attempt is given.
-- @parked_ulid, @attempts, @reason: of an event to park as a dead letter. @dead_letter: a dead letter that was consumed.
-- result: the row, as list_cursors. Its ack follows the cursor, but stays below the first open dead letter.
-- errors: 77105 @upto is beyond the shard's high-water time. 77108 @seconds. 77131 the consumer was dropped, or never acquired the
--     shard. 77132 the row was changed. 77133 the lease is not the newest or was released; transient. 77135 the consumer belongs to another
--     user. 77150 the work ended the transaction, or left it doomed or a nested one open. 77154 @dead_letter is not open
-- permission: readers
create or alter procedure <<schema>>.[consume_events:<<name>>] (
    @consumer nvarchar(128),
    @shard_id <<shard_type>>,
    @upto binary(16),
    @fencing_token bigint,
    @seconds float = null,
    @expected_version bigint = null,
    @transaction_id bigint = null,
    @first_ulid binary(16) = null,
    @last_ulid binary(16) = null,
    @events bigint = null,
    @attempt int = null,
    @started_at datetime2(3) = null,
    @outcome varchar(10) = 'consumed',
    @error nvarchar(2000) = null,
    @parked_ulid binary(16) = null,
    @attempts int = null,
    @reason nvarchar(2000) = null,
    @dead_letter bigint = null
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    set rowcount 0;
    begin try
        declare @is_own bit = case when @@trancount = 0 then 1 else 0 end;
        declare @shard nvarchar(36) = <<schema>>.[shard_text](@shard_id), @message nvarchar(2048), @now datetime2(3), @version bigint, @token bigint;
        declare @holder nvarchar(256), @moved_by nvarchar(256), @owner nvarchar(128), @cursor binary(16), @open binary(16), @ack binary(16);
        if xact_state() = -1 or (@transaction_id is not null and (@@trancount <> 1 or current_transaction_id() <> @transaction_id))
            throw 77150, N'changefeed 77150: feed "<<name_text>>": nothing was consumed: the work ended its transaction, by a commit or rollback of its own or an error that it caught, or left a nested transaction open. Leave begin, commit and rollback to the consumer, and let errors propagate', 1;
        if @seconds <= 0 or @seconds > 31622400
            throw 77108, N'changefeed 77108: feed "<<name_text>>": a lease must last more than 0 and at most 31622400 seconds', 1;
        if @is_own = 1 begin transaction;
        -- Locked by an update that changes nothing, then read: this reads what the last holder of the lock committed. The hints keep the row until
        -- the transaction ends where the write alone would not (ADR 0005); Babelfish ignores them.
        update <<schema>>.[consumers] with (updlock, rowlock) set resource_version = resource_version
        where feed_id = <<feed_id>> and consumer = @consumer and shard = @shard;
        select
            @version = c.resource_version, @token = c.fencing_token, @holder = c.lease_holder, @moved_by = c.moved_by, @owner = c.owner,
            @cursor = c.ulid, @ack = c.ack
        from <<schema>>.[consumers] as c
        where c.feed_id = <<feed_id>> and c.consumer = @consumer and c.shard = @shard;
        set @now = <<schema>>.[now]();
        if @version is null
        begin
            set @message = concat(
                N'changefeed 77131: consumer "', @consumer, N'" has no cursor for shard ', @shard,
                N' of feed "<<name_text>>"; the consumer was dropped, or never acquired the shard: nothing was consumed');
            throw 77131, @message, 1;
        end;
        if <<schema>>.[owns_consumer](@owner, N'<<name_text>>') = 0 exec <<schema>>.[check_owner] @feed_id = <<feed_id>>, @feed = N'<<name_text>>', @consumer = @consumer;
        -- The fence. An expired lease counts until another holder acquires it, with a higher token.
        if @token <> @fencing_token or @holder is null or @fencing_token is null
        begin
            set @message = concat(
                N'changefeed 77133: lease ', @fencing_token, N' on consumer "', @consumer, N'", feed "<<name_text>>", shard ', @shard, N' is lost (',
                case when @holder is null then N'it was released' else concat(N'newest lease ', @token, N', held by "', @holder, N'"') end,
                N'): nothing was written. Acquire the lease again');
            throw 77133, @message, 1;
        end;
        if @version <> @expected_version
        begin
            set @message = concat(
                N'changefeed 77132: cursor of consumer "', @consumer, N'", feed "<<name_text>>", shard ', @shard, N' is at resource version ',
                @version, N' (moved by "', @moved_by, N'"), not ', @expected_version, N': nothing was changed. Read it again, then decide');
            throw 77132, @message, 1;
        end;
        -- The cursor never goes back.
        if @upto is null or @upto < @cursor set @upto = @cursor;
        if @upto > @cursor exec <<schema>>.[check_beyond:<<name>>] @shard_id = @shard_id, @cursor = @upto;
        if @parked_ulid is not null
        begin
            -- A resolved dead letter that comes again after a rewind is open again.
            update <<schema>>.[dead_letters]
            set state = 'parked', attempts = @attempts, reason = @reason, parked_at = @now, parked_by = @holder, resolved_at = null, resolved_by = null, note = null,
                resource_version = resource_version + 1
            where feed_id = <<feed_id>> and consumer = @consumer and shard = @shard and ulid = @parked_ulid;
            if @@rowcount = 0
                insert into <<schema>>.[dead_letters] (feed_id, consumer, shard, ulid, state, attempts, reason, parked_at, parked_by)
                values (<<feed_id>>, @consumer, @shard, @parked_ulid, 'parked', @attempts, @reason, @now, @holder);
        end;
        if @dead_letter is not null
        begin
            update <<schema>>.[dead_letters]
            set state = 'done', resolved_at = @now, resolved_by = @holder, resource_version = resource_version + 1
            where number = @dead_letter and feed_id = <<feed_id>> and consumer = @consumer and shard = @shard and state in ('parked', 'retry');
            if @@rowcount = 0
            begin
                set @message = concat(
                    N'changefeed 77154: consumer "', @consumer, N'", feed "<<name_text>>", shard ', @shard, N' has no open dead letter ', @dead_letter, N'; nothing was consumed');
                throw 77154, @message, 1;
            end;
        end;
        if @attempt is not null
            insert into <<schema>>.[invocations]
                (feed_id, consumer, shard, first_ulid, last_ulid, events, attempt, started_at, ended_at, outcome, error, holder, fencing_token)
            values (<<feed_id>>, @consumer, @shard, @first_ulid, @last_ulid, @events, @attempt, @started_at, @now, @outcome, @error, @holder, @fencing_token);
        select top (1) @open = d.ulid from <<schema>>.[dead_letters] as d
        where d.feed_id = <<feed_id>> and d.consumer = @consumer and d.shard = @shard and d.state in ('parked', 'retry')
        order by d.ulid;
        set @open = <<schema>>.[previous_ulid](@open);
        if @open is null or @open > @upto set @open = @upto;
        if @open > @ack set @ack = @open;
        update <<schema>>.[consumers]
        set ulid = @upto,
            ack = @ack,
            resource_version = resource_version + 1,
            moved_at = @now,
            moved_by = @holder,
            lease_expires = case when @seconds is null then lease_expires else <<schema>>.[later](@now, @seconds) end
        where feed_id = <<feed_id>> and consumer = @consumer and shard = @shard and fencing_token = @fencing_token and lease_holder is not null;
        if @is_own = 1 commit;
        select
            c.consumer, c.shard, c.start_ulid, c.ulid, c.ahead, c.before, c.began, c.ack, c.resource_version, c.moved_at, c.moved_by,
            c.fencing_token, c.lease_holder, c.lease_expires
        from <<schema>>.[consumers] as c
        where c.feed_id = <<feed_id>> and c.consumer = @consumer and c.shard = @shard;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
