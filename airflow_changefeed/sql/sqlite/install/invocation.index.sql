create index if not exists "changefeed.invocation_of" on "changefeed.invocation" (feed, consumer, ended_at_ms);
