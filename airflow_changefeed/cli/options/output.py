# SPDX-License-Identifier: Apache-2.0
"""
The commands of ``airflow-changefeed`` on outputs: names and options only.

Every ``airflow`` command imports this file; the module of a command is imported when that command runs.
"""

from __future__ import annotations

from airflow_changefeed.cli.options.shared import (
    CONN_ID,
    FEED_HELP,
    SHOWN,
    TIME_HELP,
    VERBOSE,
    Group,
    Option,
    action,
    option,
    path,
)
from airflow_changefeed.cli.options.values import (
    duration_or_none,
    shard,
    time,
)

_CATALOG_HELP = "Airflow connection of the catalog of an Iceberg table (iceberg, or generic)"


def _of_table() -> tuple[Option, ...]:
    """Return the options that name an export and its table."""
    return (
        option("--feed", help=FEED_HELP, required=True),
        *path(),
        option("--catalog-conn-id", help=_CATALOG_HELP),
    )


JOB_CONNECTION = action(
    "job-connection",
    "output.job_connection",
    "Print the connection of a job, to be kept as a secret of the cluster that runs it",
    "For jobs that changefeed_export_group starts by an operator of another provider. Shows passwords: "
    "write it into the cluster's secret store, not to a terminal that is recorded.",
    CONN_ID,
    *path(),
    VERBOSE,
)

VERIFY = action(
    "verify",
    "output.verify",
    "Compare an export with its manifests and report every difference",
    "Reads an export, or a part of it. Exits with status 0 if nothing is damaged (there may be leftovers), 1 "
    "if something is damaged, 2 if the export cannot be verified.",
    *path(),
    option("--feed", help=FEED_HELP, required=True),
    option("--start", help=f"Start, inclusive: {TIME_HELP}", type=time),
    option("--end", help="End, exclusive: ISO 8601 with a zone", type=time),
    option("--shard", help="Shard; may be given more than once", type=shard, action="append"),
    option("--catalog-conn-id", help=_CATALOG_HELP),
    option("--conn-id", help="Airflow connection of the feeds' database, to report stale units too"),
    *SHOWN,
)

_PUBLISH = action(
    "publish",
    "output.publish",
    "Make a table of Delta Lake or Iceberg hold what an export has committed",
    "Makes a table that was lost again, or one of an export that was begun as Parquet: then name the "
    "format, after the DAGs were changed and while no export runs. The table holds all committed units "
    "afterwards, and nothing else.",
    *_of_table(),
    option("--table-format", help="delta or iceberg, where the export has no table yet"),
    option("--catalog-table", help="Name of a new Iceberg table: namespace.table"),
    VERBOSE,
)

_CLEAN = action(
    "clean",
    "output.clean",
    "Remove files that a table of an export no longer needs",
    "Removes the files of replaced and of failed attempts. Versions of the table that are older than "
    "asked can no longer be read, except the newest.",
    *_of_table(),
    option(
        "--keep-for",
        help="How long replaced versions can be read: longer than a reader takes (default: 7d)",
        type=duration_or_none,
        default="7d",
    ),
    VERBOSE,
)

OUTPUT = Group(name="output", help="Repair the output of exports", commands=(_PUBLISH, _CLEAN))
