create trigger <<trigger>> after <<operation>> on <<table>><<condition>>
begin
    <<records>>
end
