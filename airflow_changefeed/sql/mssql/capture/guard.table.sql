-- Stays empty. Its foreign key makes the server refuse to truncate the captured table or to switch its partitions out, which would bypass
-- the triggers.
create table <<schema>>.[guard.<<table_no>>:<<name>>] (
    <<key_definitions>>,
    constraint [pk:guard.<<table_no>>:<<name>>] primary key (<<keys>>),
    constraint [fk:guard.<<table_no>>:<<name>>] foreign key (<<keys>>) references <<table>> (<<keys>>)
);
