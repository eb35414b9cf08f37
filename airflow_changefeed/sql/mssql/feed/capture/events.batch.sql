-- Adds the number of events that each shard ever had, to number them. And disables lock escalation: a statement of many rows must not lock
-- the whole event table, which other captured tables write to and drains read (ADR 0001, R2).
if not exists (
    select 1 from sys.columns as c
    where c.object_id = object_id(N'<<schema_in_text>>.[state:<<name_in_text>>]') and c.name = N'events'
)
    alter table <<schema>>.[state:<<name>>] add events bigint not null
        constraint [def:state.events:<<name>>] default 0;
if exists (select 1 from sys.tables as t where t.object_id = <<object_id>> and t.lock_escalation <> 1)
    alter table <<table>> set (lock_escalation = disable);
