-- Options that older feeds lack. Lock escalation by a drain or purge would block polls for new events.
alter table <<schema>>.[feed:<<name>>] set (lock_escalation = disable);
