-- Recorded values of captures that no export could represent, their replacements, and who replaced them.
-- event: row of the capture's table of events. before_literal and after_literal: as SQL writes values.
create table if not exists "changefeed.repair" (
    number          integer primary key autoincrement,
    capture         text    not null,
    event           integer not null,
    table_name      text    not null,
    image           text    not null,
    column_name     text    not null,
    before_literal  text    not null,
    after_literal   text    not null,
    repaired_at_ms  integer not null,
    repaired_by     text    not null,
    note            text    not null
) strict;
