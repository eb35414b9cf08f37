-- Options that older feeds lack. Lock escalation by a drain or purge would block polls for new events.
if exists (select 1 from sys.tables as t where t.object_id = object_id(N'<<schema_in_text>>.[feed:<<name_in_text>>]') and t.lock_escalation <> 1)
    alter table <<schema>>.[feed:<<name>>] set (lock_escalation = disable);
