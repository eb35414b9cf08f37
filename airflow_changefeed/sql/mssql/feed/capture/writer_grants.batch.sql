-- Nobody writes to the outbox of a capture but its triggers, which have the tables' owner.
declare @nothing int;
