-- Order numbers of every outbox, and numbers for the ULIDs of serialized writers. Starts at 10^15, so that its numbers cannot be confused
-- with an index of ulid:T (below 10^11). A sequence never repeats a number.
if object_id(N'<<schema_in_text>>.[sequence]') is null
    create sequence <<schema>>.[sequence] as bigint start with 1000000000000000 increment by 1 <<cache>>;
