-- The index option for keys at whose end many writers insert, for after another option; empty where the server is older than 2019.
-- permission: internal
create or alter function <<schema>>.[sequential_key]() returns nvarchar(50)
as
begin
    return case when exists (
        select 1 from sys.all_columns as c
        where c.object_id = object_id(N'sys.indexes') and c.name = N'optimize_for_sequential_key'
    ) then N', optimize_for_sequential_key = on' else N'' end;
end
