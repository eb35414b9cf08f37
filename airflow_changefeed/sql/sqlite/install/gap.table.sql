-- Changes that a capture missed, or may have missed. While one is open, nothing is sealed.
-- kind: of the finding; at most one open gap per kind and table.
-- after_ms: until when the feed was sealed; null before the first seal.
create table if not exists "changefeed.gap" (
    number         integer primary key autoincrement,
    capture        text    not null,
    table_name     text    not null,
    kind           text    not null,
    reason         text    not null,
    found_at_ms    integer not null,
    after_ms       integer,
    resolved_at_ms  integer,
    resolved_by     text,
    note           text
) strict;
