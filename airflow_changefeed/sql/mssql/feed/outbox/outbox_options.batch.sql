-- Options that older outboxes lack; see outbox.table.sql.
if exists (select 1 from sys.tables as t where t.object_id = object_id(N'<<schema_in_text>>.[outbox:<<name_in_text>>]') and t.lock_escalation <> 1)
    alter table <<schema>>.[outbox:<<name>>] set (lock_escalation = disable);
declare @sql nvarchar(max);
select @sql = concat(N'alter index ', quotename(i.name), N' on <<schema_in_text>>.[outbox:<<name_in_text>>] set (allow_page_locks = off)')
from sys.indexes as i
where i.object_id = object_id(N'<<schema_in_text>>.[outbox:<<name_in_text>>]') and i.index_id = 1 and i.allow_page_locks = 1;
if @sql is not null exec sys.sp_executesql @sql;
