-- The feed of a dead letter; null if the number does not exist.
create function <<schema>>.[dead_letter_feed](@number bigint) returns nvarchar(128)
as
begin
    return (
        select f.name from <<schema>>.[dead_letters] as d
        inner join <<schema>>.[feeds] as f on f.feed_id = d.feed_id
        where d.number = @number
    );
end
