-- Only its triggers write to the outbox of a capture, through ownership chaining.
declare @nothing int;
