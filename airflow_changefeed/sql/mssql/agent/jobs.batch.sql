-- Creates or updates the two jobs of SQL Server Agent that drain and purge the feeds of this database, and lets their owner do that. Run
-- again, it sets the same steps and schedules and adds the feeds set up since; notifications, further steps and whether a job is enabled
-- stay.
-- errors: 77160 the jobs cannot be created here
-- permission: sysadmin, because only its members may give jobs to another login
set xact_abort, nocount on;
declare @database sysname = N'<<database_text>>', @owner sysname = N'<<owner_text>>', @user sysname, @role sysname, @sql nvarchar(max), @message nvarchar(2048);
declare @jobs table (
    name sysname not null primary key, description nvarchar(512) not null, command nvarchar(max) not null, subday_type int not null,
    subday_interval int not null, start_time int not null);
declare @job sysname, @description nvarchar(512), @command nvarchar(max), @subday_type int, @subday_interval int, @start_time int, @schedule_id int;
if serverproperty('EngineEdition') = 5
    throw 77160, N'changefeed 77160: Azure SQL Database has no SQL Server Agent; let elastic jobs or another scheduler call <<schema_in_text>>.[maintain_feeds]', 1;
if isnull(is_srvrolemember(N'sysadmin'), 0) = 0
    throw 77160, N'changefeed 77160: only a member of sysadmin may create jobs for another login; run this script as one', 1;
if object_id(N'<<schema_in_text>>.[maintain_feeds]', N'P') is null
    throw 77160, N'changefeed 77160: <<schema_in_text>>.[maintain_feeds] not found in this database; install changefeed there first, or upgrade it', 1;
if suser_id(@owner) is null
begin
    set @message = concat(N'changefeed 77160: login "', @owner, N'" not found; create it first, it needs no rights of its own');
    throw 77160, @message, 1;
end;

-- The owner may drain, seal and purge: the operators role of each feed, and nothing else.
select @user = u.name from sys.database_principals as u where u.sid = suser_sid(@owner);
if @user is null
begin
    set @sql = concat(N'create user ', quotename(@owner), N' for login ', quotename(@owner));
    exec sys.sp_executesql @sql;
    set @user = @owner;
end;
declare @roles table (name sysname not null primary key);
insert into @roles (name)
select r.name from sys.database_principals as r
inner join <<schema>>.[feeds] as f on r.name = concat(N'<<schema_text>>.operators:', f.name) collate database_default
where @user <> N'dbo' and not exists (
    select 1 from sys.database_role_members as m
    where m.role_principal_id = r.principal_id and m.member_principal_id = user_id(@user));
select top (1) @role = r.name from @roles as r order by r.name;
while @role is not null
begin
    set @sql = concat(N'alter role ', quotename(@role), N' add member ', quotename(@user));
    exec sys.sp_executesql @sql;
    delete from @roles where name = @role;
    set @role = null;
    select top (1) @role = r.name from @roles as r order by r.name;
end;

insert into @jobs (name, description, command, subday_type, subday_interval, start_time)
values
    (N'<<schema_text>> drain <<database_text>>', N'Orders what waits in the outboxes of all feeds of this database (airflow_changefeed <<version>>).',
        N'exec <<schema_in_text>>.[maintain_feeds];', <<subday_type>>, <<subday_interval>>, 0),
    (N'<<schema_text>> purge <<database_text>>', N'Seals and purges all feeds of this database up to <<keep_text>> ago (airflow_changefeed <<version>>).',
        N'declare @before datetime2(3) = dateadd(minute, -<<keep_minutes>>, <<schema_in_text>>.[now]()); exec <<schema_in_text>>.[maintain_feeds] @purge_before = @before;',
        1, 0, <<purge_time>>);
select top (1) @job = j.name from @jobs as j order by j.name;
while @job is not null
begin
    select
        @description = j.description, @command = j.command, @subday_type = j.subday_type, @subday_interval = j.subday_interval,
        @start_time = j.start_time
    from @jobs as j where j.name = @job;
    -- A job is created completely or not at all. msdb's procedures use raiserror, which stops nothing outside of a try block.
    begin try
        begin transaction;
        if exists (select 1 from msdb.dbo.sysjobs as j where j.name = @job)
        begin
            exec msdb.dbo.sp_update_job @job_name = @job, @description = @description, @owner_login_name = @owner;
            exec msdb.dbo.sp_update_jobstep @job_name = @job, @step_id = 1, @command = @command, @database_name = @database;
        end
        else
        begin
            exec msdb.dbo.sp_add_job @job_name = @job, @description = @description, @owner_login_name = @owner;
            exec msdb.dbo.sp_add_jobstep
                @job_name = @job, @step_name = N'all feeds', @subsystem = N'TSQL', @command = @command, @database_name = @database;
            exec msdb.dbo.sp_add_jobserver @job_name = @job, @server_name = N'(local)';
        end;
        set @schedule_id = null;
        select @schedule_id = s.schedule_id
        from msdb.dbo.sysjobs as j
        inner join msdb.dbo.sysjobschedules as c on c.job_id = j.job_id
        inner join msdb.dbo.sysschedules as s on s.schedule_id = c.schedule_id
        where j.name = @job and s.name = @job;
        if @schedule_id is null
            exec msdb.dbo.sp_add_jobschedule
                @job_name = @job, @name = @job, @freq_type = 4, @freq_interval = 1, @freq_subday_type = @subday_type,
                @freq_subday_interval = @subday_interval, @active_start_time = @start_time;
        else
            exec msdb.dbo.sp_update_schedule
                @schedule_id = @schedule_id, @freq_type = 4, @freq_interval = 1, @freq_subday_type = @subday_type,
                @freq_subday_interval = @subday_interval, @active_start_time = @start_time;
        commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
    delete from @jobs where name = @job;
    set @job = null;
    select top (1) @job = j.name from @jobs as j order by j.name;
end;
