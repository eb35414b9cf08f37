# SPDX-License-Identifier: Apache-2.0
"""
The built-in functions of SQL Server 2017 and Azure SQL Database that the package may call.

The model compiler takes any unqualified function name, a misspelt one and one of SQL Server 2022
(``greatest``) alike. What is missing here may be added, if Microsoft's page says "SQL Server 2017" or older.
"""

from __future__ import annotations

_TEXT = """
    ascii char charindex concat concat_ws difference format formatmessage len lower ltrim nchar patindex
    quotename replace replicate reverse rtrim soundex space str string_agg string_escape stuff substring
    translate trim unicode datalength
"""
_TIME = """
    dateadd datediff datediff_big datefromparts datename datepart datetime2fromparts datetimefromparts
    datetimeoffsetfromparts day eomonth getdate getutcdate isdate month switchoffset sysdatetime
    sysdatetimeoffset sysutcdatetime timefromparts todatetimeoffset year
"""
_NUMBERS = "abs ceiling exp floor isnumeric log log10 power rand round sign sqrt square"
_BYTES = "binary_checksum checksum checksum_agg compress decompress hashbytes crypt_gen_random newid"
_AGGREGATES = "avg count count_big grouping max min stdev stdevp sum var varp"
_RANKS = "cume_dist dense_rank first_value lag last_value lead ntile percent_rank rank row_number"
_JSON = "isjson json_modify json_query json_value"
_CATALOG = """
    col_length col_name columnproperty databasepropertyex db_id db_name has_perms_by_name indexproperty
    is_member is_rolemember is_srvrolemember object_definition object_id object_name object_schema_name
    objectproperty objectpropertyex permissions schema_id schema_name serverproperty stats_date type_id
    type_name
    sql_variant_property typeproperty user_id user_name database_principal_id original_db_name suser_id
    suser_name suser_sid suser_sname original_login
"""
_SESSION = """
    app_name applock_mode applock_test connectionproperty context_info current_request_id
    current_transaction_id error_line error_message error_number error_procedure error_severity
    error_state host_name isnull min_active_rowversion rowcount_big scope_identity session_context
    xact_state choose newsequentialid
"""

BUILT_IN = frozenset(
    " ".join((_TEXT, _TIME, _NUMBERS, _BYTES, _AGGREGATES, _RANKS, _JSON, _CATALOG, _SESSION)).split()
)
