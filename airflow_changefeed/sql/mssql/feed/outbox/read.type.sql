-- The shape of #read: declare @t <<schema>>.[type:read:...]; select * into #read from @t;
create type <<schema>>.[type:read:<<name>>] as table (
    ulid binary(16) not null,
    <<key_definitions>>
);
