-- The database's identity, one row, created once; unchanged by upgrades and in a copy restored from a backup (ADR 0009).
-- id: readable by every database user, because it is not secret; renew_identity changes it.
if object_id(N'<<schema_in_text>>.[database_identity]') is null
    create table <<schema>>.[database_identity] (
        only_row bit not null constraint [def:database_identity.only_row] default 1,
        id uniqueidentifier not null,
        constraint [pk:database_identity] primary key (only_row),
        constraint [check:database_identity.only_row] check (only_row = 1)
    );
insert into <<schema>>.[database_identity] (id)
select newid() where not exists (select 1 from <<schema>>.[database_identity] with (updlock, holdlock));
grant select on <<schema>>.[database_identity] to public;
