-- Inserts past events directly into the feed, and marks the windows they touch as stale.
-- Reads the caller's #history (changefeed_place int not null, changefeed_time datetime2(3) not null, <key columns>): feed time in UTC and
-- key of each event; their rows must already be in the event table. Events with the same time keep the order of changefeed_place, after
-- those already in the feed at that time.
-- Looks for the keys in the whole feed before it locks the shard; under the lock only in what has come meanwhile, so that drains, seals and
-- readers at the head do not wait for the search.
-- @reason: free text, for re-exporting the windows. @lock_timeout: milliseconds.
-- result: the mark: number, shard, after_ulid (exclusive), upto_ulid (inclusive), at, reason.
-- errors: 77100 in a transaction. 77101 lock timeout; transient. 77107 #history is missing or lacks a column. 77120 all problems of the
--     events: not before the seal, below what was purged, a key that is duplicate, already known or without a row
-- permission: operators; select on the event table if it has another owner
create or alter procedure <<schema>>.[insert_history:<<name>>] (
    @shard_id <<shard_type>>,
    @reason nvarchar(1000),
    @lock_timeout int = 60000
)
as
begin
    set xact_abort, nocount on;
    set implicit_transactions off;
    set transaction isolation level read committed;
    begin try
        declare @message nvarchar(2048), @problems nvarchar(1500) = N'', @rows bigint, @found bigint, @marks bigint;
        declare @floor datetime2(3), @latest datetime2(3), @earliest datetime2(3), @purged binary(16), @number bigint;
        declare @random binary(10) = crypt_gen_random(10);
        declare @random_low bigint = 1 + (convert(bigint, substring(@random, 3, 8)) & 4611686018427387903);
        declare @first binary(16), @last binary(16);
        declare @given table (ulid binary(16) not null primary key);
        declare @searched table (shard_id <<shard_type>> not null primary key, ulid binary(16) not null);
        if @@trancount > 0
            throw 77100, N'changefeed 77100: feed "<<name_text>>": please call this procedure outside of any transaction (insert_history)', 0;
        if object_id(N'tempdb..#history') is null
            throw 77107, N'changefeed 77107: feed "<<name_text>>": create the table #history first: changefeed_place int not null, changefeed_time datetime2(3) not null, and the key columns', 1;
        begin try
            exec sys.sp_executesql N'declare @rows int; select @rows = count(*) from (select h.changefeed_place, h.changefeed_time<<history_columns_in_text>> from #history as h) as s;';
        end try
        begin catch
            throw 77107, N'changefeed 77107: feed "<<name_text>>": #history lacks a column: it needs changefeed_place, changefeed_time, <<key_names_in_text>>', 1;
        end catch;

        select @rows = count_big(*), @latest = max(h.changefeed_time), @earliest = min(h.changefeed_time) from #history as h;
        if @rows = 0 set @problems = concat(@problems, N'; there are no events');
        if exists (select 1 from #history as h group by <<history_keys>> having count(*) > 1)
            set @problems = concat(@problems, N'; a key occurs twice');
        select @found = count_big(*) from #history as h
        where not exists (select 1 from <<table>> as t where <<history_is_table>>);
        if @found > 0
            set @problems = concat(@problems, N'; ', @found, N' of the keys have no row in the event table; insert the rows first');
        -- Below the next ULID of a shard only history comes, in one transaction with its mark: so the marks are counted first.
        select @marks = count_big(*) from <<schema>>.[stale_marks] as m where m.feed_id = <<feed_id>>;
        insert into @searched (shard_id, ulid) select s.shard_id, s.ulid from <<schema>>.[state:<<name>>] as s;
        select @found = count_big(*) from #history as h
        where exists (
            select 1 from @searched as s
            inner join <<schema>>.[feed:<<name>>] as f on f.shard_id = s.shard_id and f.ulid < s.ulid
            where <<history_is_feed>>);

        begin transaction;
        exec <<schema>>.[lock_shard:<<name>>] @shard_id = @shard_id, @lock_timeout = @lock_timeout;
        -- Before its own row is locked: the history of another shard may be waiting for it here.
        insert into @searched (shard_id, ulid)
        select s.shard_id, 0x00000000000000000000000000000000 from <<schema>>.[state:<<name>>] as s
        where not exists (select 1 from @searched as k where k.shard_id = s.shard_id);
        if exists (select 1 from <<schema>>.[stale_marks] as m where m.feed_id = <<feed_id>> having count_big(*) <> @marks)
        begin
            update @searched set ulid = 0x00000000000000000000000000000000;
            set @found = 0;
        end;
        -- A shard first used by history must get a state row, with its high-water time at the feed's floor (R7).
        exec <<schema>>.[update_state:<<name>>] @shard_id = @shard_id, @time_hint = '1970-01-01', @count = 0;

        select @floor = f.floor_time from <<schema>>.[feeds] as f where f.feed_id = <<feed_id>>;
        select @purged = s.purged_upto from <<schema>>.[state:<<name>>] as s where s.shard_id = @shard_id;
        if @latest >= @floor
            set @problems = concat(@problems, N'; ', convert(varchar(23), @latest, 126), N'Z is not before the seal (',
                case when @floor > '1970-01-01' then convert(varchar(23), @floor, 126) + 'Z' else 'never' end,
                N'), so readers at the head would miss it; insert it into the outbox, or seal first');
        if <<schema>>.[floor_ulid](@earliest) <= @purged and @purged > 0x00000000000000000000000000000000
            set @problems = concat(@problems, N'; events up to ', <<schema>>.[ulid_text](@purged), N' were purged');
        select @found = @found + count_big(*) from #history as h
        where exists (
            select 1 from @searched as s
            inner join <<schema>>.[feed:<<name>>] as f on f.shard_id = s.shard_id and f.ulid >= s.ulid
            where <<history_is_feed>>);
        if @found > 0 set @problems = concat(@problems, N'; ', @found, N' of the keys are already in the feed');
        select @found = count_big(*) from #history as h
        where exists (select 1 from <<schema>>.[outbox:<<name>>] as o with (readpast, readcommittedlock) where <<history_is_outbox>>);
        if @found > 0 set @problems = concat(@problems, N'; ', @found, N' of the keys are already in the outbox');
        if @problems <> N''
        begin
            set @message = concat(
                N'changefeed 77120: feed "<<name_text>>" shard ', <<schema>>.[shard_text](@shard_id), N' cannot take this history: ',
                substring(@problems, 3, 1500));
            throw 77120, @message, 1;
        end;

        insert into <<schema>>.[feed:<<name>>] (shard_id, ulid, <<keys>>)
        output inserted.ulid into @given (ulid)
        select
            @shard_id,
            case
                when l.ulid is null
                    then convert(binary(6), datediff_big(millisecond, '1970-01-01', n.changefeed_time)) + substring(@random, 1, 2)
                else substring(l.ulid, 1, 8)
            end + convert(binary(8), case
                when l.ulid is null then @random_low + n.changefeed_number - 1
                else convert(bigint, substring(l.ulid, 9, 8)) + n.changefeed_number
            end),
            <<numbered_keys>>
        from (
            select
                h.*,
                row_number() over (partition by h.changefeed_time order by h.changefeed_place) as changefeed_number,
                <<schema>>.[floor_ulid](h.changefeed_time) as changefeed_first,
                <<schema>>.[floor_ulid](dateadd(millisecond, 1, h.changefeed_time)) as changefeed_end
            from #history as h
        ) as n
        outer apply (
            select top (1) f.ulid
            from <<schema>>.[feed:<<name>>] as f
            where f.shard_id = @shard_id
                and f.ulid >= n.changefeed_first
                and f.ulid < n.changefeed_end
            order by f.ulid desc
        ) as l;

        select top (1) @first = g.ulid from @given as g order by g.ulid;
        select top (1) @last = g.ulid from @given as g order by g.ulid desc;
        -- The number before the first: counting starts at 1 or more, so that nothing is borrowed from the upper half.
        insert into <<schema>>.[stale_marks] (feed_id, shard, after_ulid, upto_ulid, at, reason)
        values (
            <<feed_id>>,
            <<schema>>.[shard_text](@shard_id),
            substring(@first, 1, 8) + convert(binary(8), convert(bigint, substring(@first, 9, 8)) - 1),
            @last,
            <<schema>>.[now](),
            @reason
        );
        set @number = scope_identity();
        commit;
        select m.number, m.shard, m.after_ulid, m.upto_ulid, m.at, m.reason
        from <<schema>>.[stale_marks] as m
        where m.feed_id = <<feed_id>> and m.number = @number;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
