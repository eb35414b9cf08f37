-- Options that older state tables lack. A lock on one shard must never escalate to all. Only what differs is altered: that waits for the
-- oldest writer, and all others behind it.
if not exists (
    select 1 from sys.columns as c
    where c.object_id = object_id(N'<<schema_in_text>>.[state:<<name_in_text>>]') and c.name = N'purged_upto'
)
    alter table <<schema>>.[state:<<name>>] add purged_upto binary(16) not null
        constraint [def:state.purged_upto:<<name>>] default 0x00000000000000000000000000000000;
if exists (select 1 from sys.tables as t where t.object_id = object_id(N'<<schema_in_text>>.[state:<<name_in_text>>]') and t.lock_escalation <> 1)
    alter table <<schema>>.[state:<<name>>] set (lock_escalation = disable);
