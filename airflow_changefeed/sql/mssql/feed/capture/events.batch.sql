-- Adds the number of events that each shard ever had, to number them.
if not exists (
    select 1 from sys.columns as c
    where c.object_id = object_id(N'<<schema_in_text>>.[state:<<name_in_text>>]') and c.name = N'events'
)
    alter table <<schema>>.[state:<<name>>] add events bigint not null
        constraint [def:state.events:<<name>>] default 0;
