create index if not exists "changefeed.cursor_history_of"
on "changefeed.cursor_history" (feed, consumer, shard, number);
