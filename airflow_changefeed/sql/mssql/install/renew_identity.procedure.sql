-- Gives a copy of a database its own identity, so that it is not confused with the original: its consumers publish under new Variables, and
-- its exports refuse outputs begun under the old identity.
-- result: id, the new one.
-- permission: execute is granted to nobody; db_owner has it.
create or alter procedure <<schema>>.[renew_identity]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    update <<schema>>.[database_identity] set id = newid() output inserted.id;
end
