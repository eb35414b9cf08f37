-- The ordered log of serialized writers is their own table; this gives its columns the names of a feed's.
create view <<schema>>.[feed:<<name>>]
as
select
    <<shard_expression>> as shard_id,
    <<ulid_expression>> as ulid<<view_keys>>
from <<table>> as t;
