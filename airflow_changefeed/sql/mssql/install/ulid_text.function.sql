-- A ULID as 26 Crockford characters, as in Python, Variables and Parquet.
create or alter function <<schema>>.[ulid_text](@ulid binary(16)) returns varchar(26)
with schemabinding
as
begin
    declare @text varchar(26) = '', @place int = 1, @bits int = 2, @rest int = 0;
    -- 130 bits are encoded, of which the first two are 0.
    while @place <= 16
    begin
        set @rest = @rest * 256 + convert(int, substring(@ulid, @place, 1));
        set @bits = @bits + 8;
        while @bits >= 5
        begin
            set @bits = @bits - 5;
            set @text = @text + substring('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + @rest / power(2, @bits), 1);
            set @rest = @rest % power(2, @bits);
        end;
        set @place = @place + 1;
    end;
    return @text;
end
