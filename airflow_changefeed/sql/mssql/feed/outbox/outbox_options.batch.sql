-- What an older outbox lacks; see outbox.table.sql.
alter table <<schema>>.[outbox:<<name>>] set (lock_escalation = disable);
if exists (
    select 1 from sys.indexes as i
    where i.object_id = object_id(N'<<schema_in_text>>.[outbox:<<name_in_text>>]') and i.index_id = 1 and i.allow_page_locks = 1
)
    exec (N'alter index [pk:outbox:<<name_in_text>>] on <<schema_in_text>>.[outbox:<<name_in_text>>] set (allow_page_locks = off)');
