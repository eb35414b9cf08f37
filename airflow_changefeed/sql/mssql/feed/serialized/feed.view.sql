-- The ordered log of serialized writers is their own table; this maps its columns to a feed's names.
create or alter view <<schema>>.[feed:<<name>>]
as
select
    <<shard_expression>> as shard_id,
    <<ulid_expression>> as ulid<<view_keys>>
from <<table>> as t;
