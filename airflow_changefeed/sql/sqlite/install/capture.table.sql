-- All captures of this database, one row each; a capture's feed has the same name.
-- spec: as requested. fields: names and declared types of the columns of an image. tables: for each, what is captured and the texts of its
-- triggers. balances: for each table its number of rows according to the events up to checked_upto; null if unknown. All four are JSON.
-- disabled_at_ms: null while its triggers record.
create table if not exists "changefeed.capture" (
    name            text    not null primary key,
    spec            text    not null check (json_valid(spec)),
    fields          text    not null check (json_valid(fields)),
    tables          text    not null check (json_valid(tables)),
    balances        text    not null check (json_valid(balances)),
    checked_upto    integer not null,
    enabled_at_ms   integer not null,
    disabled_at_ms  integer
) strict;
