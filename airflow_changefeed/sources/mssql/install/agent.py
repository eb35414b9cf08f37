# SPDX-License-Identifier: Apache-2.0
"""The script that gives SQL Server Agent the jobs that drain and purge the feeds of a database."""

from __future__ import annotations

from datetime import time, timedelta

from airflow_changefeed import __version__
from airflow_changefeed.core.feed import max_hold_text
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sql import fill, load_sql
from airflow_changefeed.sql.mssql import DEFAULT_SCHEMA, install_tokens

_SECOND, _MINUTE, _HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
#: ``freq_subday_type`` of a schedule: the length of its unit.
_SUBDAYS = ((8, _HOUR), (4, _MINUTE), (2, _SECOND))
_SHORTEST, _LONGEST = timedelta(seconds=10), timedelta(hours=12)
_CENTURY = timedelta(days=36_525)
#: Characters of the name of a job, of which the longest has ``<schema> purge <database>``.
_NAME = 128


def agent_script(
    database: str,
    owner: str,
    *,
    schema: str = DEFAULT_SCHEMA,
    drain_every: timedelta = _MINUTE,
    keep: timedelta = timedelta(days=30),
    purge_at: time = time(2),
) -> str:
    """
    Return the script, for sqlcmd or SSMS; harmless to repeat.

    :param database: whose feeds are drained and purged.
    :param owner: login that owns the jobs, and as which they run; not a group of Windows.
    :param schema: that changefeed is installed in.
    :param drain_every: 10 seconds to 12 hours, whole seconds.
    :param keep: how long events stay in the feeds: 1 minute to a century, whole minutes.
    :param purge_at: when each day, by the server's local time; whole minutes.
    :raises InvalidArgumentError: names everything that is wrong.
    """
    problems = []
    for name, value in {"database": database, "owner": owner, "schema": schema}.items():
        if not value or len(value) > _NAME or not value.isprintable():
            problems.append(f"{name} must be 1 to {_NAME} printable characters, not {value!r}")
        elif "$" in value:
            problems.append(f"{name} {value!r} contains $, with which variables of sqlcmd begin")
    if (length := len(f"{schema} purge {database}")) > _NAME:
        problems.append(
            f"database {database!r} is too long by {length - _NAME} characters for the name of a job"
        )
    if not _SHORTEST <= drain_every <= _LONGEST or drain_every % _SECOND:
        problems.append(f"drain_every must be 10 seconds to 12 hours, in whole seconds, not {drain_every}")
    if not _MINUTE <= keep <= _CENTURY or keep % _MINUTE:
        problems.append(f"keep must be 1 minute to {_CENTURY.days} days, in whole minutes, not {keep}")
    InvalidArgumentError.collect("agent jobs", problems)
    kind, unit = next(one for one in _SUBDAYS if not drain_every % one[1])
    tokens = {
        **install_tokens(schema),
        "database_text": database.replace("'", "''"),
        "owner_text": owner.replace("'", "''"),
        "subday_type": str(kind),
        "subday_interval": str(drain_every // unit),
        "keep_minutes": str(keep // _MINUTE),
        "keep_text": str(keep).removesuffix(", 0:00:00")
        if keep % timedelta(days=1) == timedelta()
        else max_hold_text(keep),
        "purge_time": f"{purge_at:%H%M}00",
    }
    head = (
        f"-- airflow_changefeed {__version__}: jobs of SQL Server Agent for schema {schema} of database "
        f"{database}; run as sysadmin.\n"
    )
    use = f"use [{database.replace(']', ']]')}];\ngo\nset quoted_identifier on;\nset ansi_nulls on;\ngo\n\n"
    return f"{head}{use}{fill(load_sql('mssql/agent/jobs.batch.sql'), tokens).rstrip()}\ngo\n"
