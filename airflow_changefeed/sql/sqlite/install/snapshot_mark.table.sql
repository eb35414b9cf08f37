-- A row for each reading of a range, written before it; is_read once it has ended. A file that was put back to an earlier state has lost
-- the rows of what was read since.
create table if not exists "changefeed.snapshot_mark" (
    capture text not null,
    table_name text not null,
    token text not null,
    mark text not null,
    is_read integer not null default 0,
    primary key (capture, table_name, token, mark)
) strict, without rowid;
