-- SPDX-License-Identifier: Apache-2.0
-- The procedures of mssql-changefeed v2 that ours take the names of, with their signatures.
create schema [changefeed];
go
create procedure [changefeed].setup_feed (@table_name nvarchar(max), @outbox bit = 0, @blocking bit = 0)
as
begin
    throw 50000, 'this is the one of v2', 1;
end
go
create procedure [changefeed].upgrade_feed (@table_name nvarchar(max), @outbox bit = 0, @blocking bit = 0)
as
begin
    throw 50000, 'this is the one of v2', 1;
end
