-- Order numbers of every outbox, and the numbers that serialized writers make ULIDs of. It starts at 10^15, so that a
-- number of it and an index of ulid:T (below 10^11) cannot be confused. A sequence never gives a number again.
if object_id(N'<<schema_in_text>>.[sequence]') is null
    create sequence <<schema>>.[sequence] as bigint start with 1000000000000000 increment by 1 <<cache>>;
