-- Records what is wrong with the triggers of a capture as gaps, before they are recreated or dropped, which would hide it. In the caller's
-- transaction.
-- permission: internal
create or alter procedure <<schema>>.[note_capture_gaps] (@capture_id int)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    insert into <<schema>>.[capture_gaps] (capture_id, table_no, reason, found_at, after_time)
    select t.capture_id, t.table_no, N'a trigger of the capture was disabled, altered or dropped for a while', <<schema>>.[now](), f.floor_time
    from <<schema>>.[capture_tables] as t
    inner join <<schema>>.[captures] as c on c.capture_id = t.capture_id
    inner join <<schema>>.[feeds] as f on f.name = c.name
    cross apply (
        select count(*) as triggers, count(case when charindex(r.stamp, t.trigger_modified) = 0 then 1 end) as altered
        from <<schema>>.[capture_triggers] as r
        where r.capture_id = t.capture_id and r.table_no = t.table_no and r.is_disabled = 0
    ) as p
    where c.capture_id = @capture_id and c.is_enabled = 1 and t.trigger_count > 0
        and (p.triggers < t.trigger_count or p.altered > 0)
        and not exists (
            select 1 from <<schema>>.[capture_gaps] as g
            where g.capture_id = t.capture_id and g.table_no = t.table_no and g.resolved_at is null
                and left(g.reason, 24) = N'a trigger of the capture');
end
