-- SPDX-License-Identifier: Apache-2.0
-- Stand-ins for the catalog views and system procedures of SQL Server 2017 that the package uses: the model compiler
-- knows none of them. Names and types are those of Microsoft's documentation; columns nobody needs are left out. What
-- is missing here is reported as unresolved, and may be added if SQL Server 2017 has it.
create table [sys].[schemas] (
    name sysname, schema_id int, principal_id int
);
go
create table [sys].[objects] (
    name sysname, object_id int, principal_id int, schema_id int, parent_object_id int, type char(2),
    type_desc nvarchar(60), create_date datetime, modify_date datetime, is_ms_shipped bit, is_published bit,
    is_schema_published bit
);
go
create table [sys].[procedures] (
    name sysname, object_id int, principal_id int, schema_id int, parent_object_id int, type char(2),
    type_desc nvarchar(60), create_date datetime, modify_date datetime, is_ms_shipped bit, is_published bit,
    is_schema_published bit
);
go
create table [sys].[views] (
    name sysname, object_id int, principal_id int, schema_id int, parent_object_id int, type char(2),
    type_desc nvarchar(60), create_date datetime, modify_date datetime, is_ms_shipped bit, is_published bit,
    is_schema_published bit
);
go
create table [sys].[tables] (
    name sysname, object_id int, principal_id int, schema_id int, parent_object_id int, type char(2),
    type_desc nvarchar(60), create_date datetime, modify_date datetime, is_ms_shipped bit, is_published bit,
    is_schema_published bit, lob_data_space_id int, max_column_id_used int, lock_escalation tinyint,
    lock_escalation_desc nvarchar(60), is_filetable bit, is_memory_optimized bit, durability tinyint,
    temporal_type tinyint, temporal_type_desc nvarchar(60), history_table_id int, is_external bit, is_node
    bit, is_edge bit
);
go
create table [sys].[sequences] (
    name sysname, object_id int, principal_id int, schema_id int, parent_object_id int, type char(2),
    type_desc nvarchar(60), create_date datetime, modify_date datetime, is_ms_shipped bit, is_published bit,
    is_schema_published bit, start_value sql_variant, increment sql_variant, minimum_value sql_variant,
    maximum_value sql_variant, is_cycling bit, is_cached bit, cache_size int, system_type_id tinyint,
    user_type_id int, precision tinyint, scale tinyint, current_value sql_variant, is_exhausted bit
);
go
create table [sys].[key_constraints] (
    name sysname, object_id int, principal_id int, schema_id int, parent_object_id int, type char(2),
    type_desc nvarchar(60), create_date datetime, modify_date datetime, is_ms_shipped bit, is_published bit,
    is_schema_published bit, unique_index_id int, is_system_named bit
);
go
create table [sys].[default_constraints] (
    name sysname, object_id int, principal_id int, schema_id int, parent_object_id int, type char(2),
    type_desc nvarchar(60), create_date datetime, modify_date datetime, is_ms_shipped bit, is_published bit,
    is_schema_published bit, parent_column_id int, definition nvarchar(max), is_system_named bit
);
go
create table [sys].[check_constraints] (
    name sysname, object_id int, principal_id int, schema_id int, parent_object_id int, type char(2),
    type_desc nvarchar(60), create_date datetime, modify_date datetime, is_ms_shipped bit, is_published bit,
    is_schema_published bit, is_disabled bit, is_not_for_replication bit, is_not_trusted bit,
    parent_column_id int, definition nvarchar(max), uses_database_collation bit, is_system_named bit
);
go
create table [sys].[foreign_keys] (
    name sysname, object_id int, principal_id int, schema_id int, parent_object_id int, type char(2),
    type_desc nvarchar(60), create_date datetime, modify_date datetime, is_ms_shipped bit, is_published bit,
    is_schema_published bit, referenced_object_id int, key_index_id int, is_disabled bit, is_not_trusted
    bit, delete_referential_action tinyint, update_referential_action tinyint
);
go
create table [sys].[triggers] (
    name sysname, object_id int, parent_class tinyint, parent_class_desc nvarchar(60), parent_id int, type
    char(2), type_desc nvarchar(60), create_date datetime, modify_date datetime, is_ms_shipped bit,
    is_disabled bit, is_not_for_replication bit, is_instead_of_trigger bit
);
go
create table [sys].[trigger_events] (
    object_id int, type int, type_desc nvarchar(60), is_first bit, is_last bit, event_group_type int,
    event_group_type_desc nvarchar(60), is_trigger_event bit
);
go
create table [sys].[columns] (
    object_id int, name sysname, column_id int, system_type_id tinyint, user_type_id int, max_length
    smallint, precision tinyint, scale tinyint, collation_name sysname, is_nullable bit, is_ansi_padded bit,
    is_rowguidcol bit, is_identity bit, is_computed bit, is_filestream bit, is_xml_document bit,
    xml_collection_id int, default_object_id int, rule_object_id int, is_sparse bit, is_column_set bit,
    generated_always_type tinyint, encryption_type int, is_hidden bit, is_masked bit
);
go
create table [sys].[all_columns] (
    object_id int, name sysname, column_id int, system_type_id tinyint, user_type_id int, max_length
    smallint, precision tinyint, scale tinyint, collation_name sysname, is_nullable bit, is_ansi_padded bit,
    is_rowguidcol bit, is_identity bit, is_computed bit, is_filestream bit, is_xml_document bit,
    xml_collection_id int, default_object_id int, rule_object_id int, is_sparse bit, is_column_set bit,
    generated_always_type tinyint, encryption_type int, is_hidden bit, is_masked bit
);
go
create table [sys].[computed_columns] (
    object_id int, name sysname, column_id int, system_type_id tinyint, user_type_id int, max_length
    smallint, precision tinyint, scale tinyint, collation_name sysname, is_nullable bit, is_ansi_padded bit,
    is_rowguidcol bit, is_identity bit, is_computed bit, is_filestream bit, is_xml_document bit,
    xml_collection_id int, default_object_id int, rule_object_id int, is_sparse bit, is_column_set bit,
    generated_always_type tinyint, encryption_type int, is_hidden bit, is_masked bit, definition
    nvarchar(max), uses_database_collation bit, is_persisted bit
);
go
create table [sys].[identity_columns] (
    object_id int, name sysname, column_id int, system_type_id tinyint, user_type_id int, max_length
    smallint, precision tinyint, scale tinyint, collation_name sysname, is_nullable bit, is_ansi_padded bit,
    is_rowguidcol bit, is_identity bit, is_computed bit, is_filestream bit, is_xml_document bit,
    xml_collection_id int, default_object_id int, rule_object_id int, is_sparse bit, is_column_set bit,
    generated_always_type tinyint, encryption_type int, is_hidden bit, is_masked bit, seed_value
    sql_variant, increment_value sql_variant, last_value sql_variant, is_not_for_replication bit
);
go
create table [sys].[types] (
    name sysname, system_type_id tinyint, user_type_id int, schema_id int, principal_id int, max_length
    smallint, precision tinyint, scale tinyint, collation_name sysname, is_nullable bit, is_user_defined
    bit, is_assembly_type bit, default_object_id int, rule_object_id int, is_table_type bit
);
go
create table [sys].[indexes] (
    object_id int, name sysname, index_id int, type tinyint, type_desc nvarchar(60), is_unique bit,
    data_space_id int, ignore_dup_key bit, is_primary_key bit, is_unique_constraint bit, fill_factor
    tinyint, is_padded bit, is_disabled bit, is_hypothetical bit, allow_row_locks bit, allow_page_locks bit,
    has_filter bit, filter_definition nvarchar(max)
);
go
create table [sys].[index_columns] (
    object_id int, index_id int, index_column_id int, column_id int, key_ordinal tinyint, partition_ordinal
    tinyint, is_descending_key bit, is_included_column bit
);
go
create table [sys].[security_policies] (
    name sysname, object_id int, principal_id int, schema_id int, parent_object_id int, type char(2),
    type_desc nvarchar(60), create_date datetime, modify_date datetime, is_ms_shipped bit, is_enabled bit,
    is_not_for_replication bit, uses_database_collation bit, is_schema_bound bit
);
go
create table [sys].[security_predicates] (
    object_id int, security_predicate_id int, target_object_id int, predicate_definition nvarchar(max),
    predicate_type int, predicate_type_desc nvarchar(60), operation int, operation_desc nvarchar(60)
);
go
create table [sys].[partitions] (
    partition_id bigint, object_id int, index_id int, partition_number int, hobt_id bigint, rows bigint,
    filestream_filegroup_id smallint, data_compression tinyint, data_compression_desc nvarchar(60)
);
go
create table [sys].[data_spaces] (
    name sysname, data_space_id int, type char(2), type_desc nvarchar(60), is_default bit, is_system bit
);
go
create table [sys].[filegroups] (
    name sysname, data_space_id int, type char(2), type_desc nvarchar(60), is_default bit, is_system bit,
    filegroup_guid uniqueidentifier, log_filegroup_id int, is_read_only bit, is_autogrow_all_files bit
);
go
create table [sys].[database_files] (
    file_id int, file_guid uniqueidentifier, type tinyint, type_desc nvarchar(60), data_space_id int, name
    sysname, physical_name nvarchar(260), state tinyint, state_desc nvarchar(60), size int, max_size int,
    growth int, is_media_read_only bit, is_read_only bit, is_sparse bit, is_percent_growth bit
);
go
create table [sys].[parameters] (
    object_id int, name sysname, parameter_id int, system_type_id tinyint, user_type_id int, max_length
    smallint, precision tinyint, scale tinyint, is_output bit, is_cursor_ref bit, has_default_value bit,
    default_value sql_variant, is_readonly bit, is_nullable bit
);
go
create table [sys].[sql_modules] (
    object_id int, definition nvarchar(max), uses_ansi_nulls bit, uses_quoted_identifier bit,
    is_schema_bound bit, uses_database_collation bit, is_recompiled bit, null_on_null_input bit,
    execute_as_principal_id int, uses_native_compilation bit
);
go
create table [sys].[database_principals] (
    name sysname, principal_id int, type char(1), type_desc nvarchar(60), default_schema_name sysname,
    create_date datetime, modify_date datetime, owning_principal_id int, sid varbinary(85), is_fixed_role
    bit, authentication_type int, authentication_type_desc nvarchar(60)
);
go
create table [sys].[database_role_members] (
    role_principal_id int, member_principal_id int
);
go
create table [sys].[database_permissions] (
    class tinyint, class_desc nvarchar(60), major_id int, minor_id int, grantee_principal_id int,
    grantor_principal_id int, type char(4), permission_name nvarchar(128), state char(1), state_desc
    nvarchar(60)
);
go
create table [sys].[certificates] (
    name sysname, certificate_id int, principal_id int, pvt_key_encryption_type char(2), thumbprint
    varbinary(32)
);
go
create table [sys].[crypt_properties] (
    class tinyint, class_desc nvarchar(60), major_id int, thumbprint varbinary(32), crypt_type char(4),
    crypt_type_desc nvarchar(60), crypt_property varbinary(max)
);
go
create table [sys].[databases] (
    name sysname, database_id int, replica_id uniqueidentifier, create_date datetime, compatibility_level tinyint, collation_name
    sysname, snapshot_isolation_state tinyint, snapshot_isolation_state_desc nvarchar(60),
    is_read_committed_snapshot_on bit, recovery_model tinyint, delayed_durability int,
    delayed_durability_desc nvarchar(60), is_nested_triggers_on bit
);
go
create table [sys].[configurations] (
    configuration_id int, name nvarchar(35), value sql_variant, value_in_use sql_variant, description
    nvarchar(255)
);
go
create table [sys].[dm_exec_sessions] (
    session_id smallint, login_time datetime, host_name nvarchar(128), program_name nvarchar(128),
    login_name nvarchar(128), status nvarchar(30), transaction_isolation_level smallint, lock_timeout int,
    row_count bigint, open_transaction_count int, quoted_identifier bit, ansi_nulls bit
);
go
create table [sys].[dm_tran_locks] (
    resource_type nvarchar(60), resource_subtype nvarchar(60), resource_database_id int,
    resource_description nvarchar(256), resource_associated_entity_id bigint, request_mode nvarchar(60),
    request_type nvarchar(60), request_status nvarchar(60), request_session_id int, request_owner_type
    nvarchar(60), request_owner_id bigint
);
go
create table [sys].[dm_tran_active_transactions] (
    transaction_id bigint, name nvarchar(32), transaction_begin_time datetime, transaction_type int,
    transaction_state int
);
go
create table [sys].[dm_tran_session_transactions] (
    session_id int, transaction_id bigint, is_user_transaction bit, is_local bit, open_transaction_count int
);
go
create function [sys].[dm_exec_describe_first_result_set] (
    @tsql nvarchar(max), @params nvarchar(max), @include_browse_information tinyint
)
returns @result table (
    is_hidden bit, column_ordinal int, name sysname null, is_nullable bit, system_type_id int,
    system_type_name nvarchar(256) null, max_length smallint, precision tinyint, scale tinyint,
    collation_name sysname null, user_type_id int null, is_identity_column bit null, is_updateable bit null,
    is_computed_column bit null, error_number int null, error_severity int null, error_state int null,
    error_message nvarchar(max) null, error_type int null, error_type_desc nvarchar(60) null
)
as begin return; end;
go
create procedure [dbo].[sp_getapplock] @Resource nvarchar(255) = null, @LockMode varchar(32) = null, @LockOwner varchar(32) = null,
    @LockTimeout int = null, @DbPrincipal sysname = null
as return 0;
go
create procedure [sys].[sp_getapplock] @Resource nvarchar(255) = null, @LockMode varchar(32) = null, @LockOwner varchar(32) = null,
    @LockTimeout int = null, @DbPrincipal sysname = null
as return 0;
go
create procedure [dbo].[sp_releaseapplock] @Resource nvarchar(255) = null, @LockOwner varchar(32) = null, @DbPrincipal sysname = null
as return 0;
go
create procedure [sys].[sp_releaseapplock] @Resource nvarchar(255) = null, @LockOwner varchar(32) = null, @DbPrincipal sysname = null
as return 0;
go
create procedure [dbo].[sp_set_session_context] @key sysname = null, @value sql_variant = null, @read_only bit = 0
as return 0;
go
create procedure [sys].[sp_set_session_context] @key sysname = null, @value sql_variant = null, @read_only bit = 0
as return 0;
go
create procedure [dbo].[sp_executesql] @stmt nvarchar(max) = null, @params nvarchar(max) = null
as return 0;
go
create procedure [sys].[sp_executesql] @stmt nvarchar(max) = null, @params nvarchar(max) = null
as return 0;
go
create procedure [dbo].[sp_flush_log]
as return 0;
go
create procedure [sys].[sp_flush_log]
as return 0;
go
create procedure [dbo].[sp_rename] @objname nvarchar(1035) = null, @newname sysname = null, @objtype varchar(13) = null
as return 0;
go
create procedure [sys].[sp_rename] @objname nvarchar(1035) = null, @newname sysname = null, @objtype varchar(13) = null
as return 0;
go
create procedure [dbo].[sp_refreshsqlmodule] @name nvarchar(776) = null, @namespace nvarchar(20) = null
as return 0;
go
create procedure [sys].[sp_refreshsqlmodule] @name nvarchar(776) = null, @namespace nvarchar(20) = null
as return 0;
go
create procedure [dbo].[sp_settriggerorder] @triggername nvarchar(517) = null, @order varchar(10) = null, @stmttype varchar(50) = null,
    @namespace varchar(10) = null
as return 0;
go
create procedure [sys].[sp_settriggerorder] @triggername nvarchar(517) = null, @order varchar(10) = null, @stmttype varchar(50) = null,
    @namespace varchar(10) = null
as return 0;
go
go
create table [INFORMATION_SCHEMA].[TABLES] (
    TABLE_CATALOG nvarchar(128), TABLE_SCHEMA nvarchar(128), TABLE_NAME sysname, TABLE_TYPE varchar(10)
);
go
create table [INFORMATION_SCHEMA].[COLUMNS] (
    TABLE_CATALOG nvarchar(128), TABLE_SCHEMA nvarchar(128), TABLE_NAME sysname, COLUMN_NAME sysname, ORDINAL_POSITION int
);
go
-- What SQL Server Agent has in msdb.
create table [dbo].[sysjobs] (
    job_id uniqueidentifier, name sysname, enabled tinyint, description nvarchar(512), owner_sid varbinary(85)
);
go
create procedure [dbo].[sp_add_job] (
    @job_name sysname, @enabled tinyint = 1, @description nvarchar(512) = null, @start_step_id int = 1,
    @category_name sysname = null, @category_id int = null, @owner_login_name sysname = null,
    @notify_level_eventlog int = 2, @notify_level_email int = 0, @delete_level int = 0,
    @job_id uniqueidentifier = null output
) as return;
go
create procedure [dbo].[sp_update_job] (
    @job_id uniqueidentifier = null, @job_name sysname = null, @new_name sysname = null, @enabled tinyint = null,
    @description nvarchar(512) = null, @start_step_id int = null, @category_name sysname = null,
    @owner_login_name sysname = null
) as return;
go
create procedure [dbo].[sp_add_jobstep] (
    @job_id uniqueidentifier = null, @job_name sysname = null, @step_id int = null, @step_name sysname,
    @subsystem nvarchar(40) = N'TSQL', @command nvarchar(max) = null, @on_success_action tinyint = 1,
    @on_fail_action tinyint = 2, @server sysname = null, @database_name sysname = null,
    @database_user_name sysname = null, @retry_attempts int = 0, @retry_interval int = 0
) as return;
go
create procedure [dbo].[sp_add_jobserver] (
    @job_id uniqueidentifier = null, @job_name sysname = null, @server_name sysname = null
) as return;
go
create procedure [dbo].[sp_add_jobschedule] (
    @job_id uniqueidentifier = null, @job_name sysname = null, @name sysname, @enabled tinyint = 1, @freq_type int = 1,
    @freq_interval int = 0, @freq_subday_type int = 0, @freq_subday_interval int = 0, @freq_relative_interval int = 0,
    @freq_recurrence_factor int = 0, @active_start_date int = null, @active_end_date int = 99991231,
    @active_start_time int = 0, @active_end_time int = 235959, @schedule_id int = null output
) as return;
