# SPDX-License-Identifier: Apache-2.0
"""
The Spark job that runs a plan: ``spark-submit --py-files ARCHIVE job.py --plan PLAN.json --connection
CONN.json``.

Its last line says how it ended, and ``result.json`` beside its attempt says it to the operator.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_changefeed.core.plan import Plan
from airflow_changefeed.exceptions import TerminalError, error_text
from airflow_changefeed.export.job_connection import JobConnection
from airflow_changefeed.export.parts import gather
from airflow_changefeed.export.progress import ProgressWatch, size_text
from airflow_changefeed.export.result import ExportResult
from airflow_changefeed.export.run import Written, run_attempt
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.spark.tasks import FACTS_SCHEMA, WriteParts, group
from airflow_changefeed.spark.watch import watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def say(line: str) -> None:
    """Write one line for readers of the job's output; Airflow's task log shows it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run_plan(
    spark: Callable[[], SparkSession],
    store: ExportStore,
    plan: Plan,
    connection: JobConnection,
    report: Callable[[str], None] = say,
) -> ExportResult:
    """
    Run a plan: write, commit, and leave nothing behind but what counts and ``result.json``.

    :param spark: makes or gives the session; not called for a plan without rows.
    :param report: takes one line of progress.
    :raises ChangefeedError: ours, also when it was raised in a task.
    """

    def write() -> Written:
        running = spark()
        cores = int(running.sparkContext.defaultParallelism)
        tasks = group(plan, cores)
        write_tasks = WriteParts(
            plan.feed, plan.path, plan.attempt, plan.options, connection, tuple(tasks), plan.database
        )
        report(
            f"changefeed job: feed {plan.feed}, attempt {plan.attempt}: {plan.rows} rows in "
            f"{len(plan.units)} units, {len(tasks)} tasks on {cores} cores"
        )
        numbers = running.range(0, len(tasks), 1, len(tasks))
        with ProgressWatch(store.files, plan, report):
            rows = numbers.mapInArrow(write_tasks, FACTS_SCHEMA).collect()
        return gather((json.loads(row["facts"]) for row in rows), plan.feed, len(tasks))

    return run_attempt(store, plan, write)


def session(app_name: str) -> SparkSession:
    """Return the session that ``spark-submit`` has set up."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.appName(app_name).getOrCreate()


def read_handed(path: str, *, remove: bool = False) -> str:
    """
    Read a file that was handed over, also where a cluster has put it into the working folder.

    :param remove: leave no such file behind: it holds secrets, and its writer may be killed.
    """
    for candidate in (path, os.path.basename(path)):
        if os.path.exists(candidate):
            with open(candidate, encoding="utf-8") as file:
                text = file.read()
            if remove:
                with contextlib.suppress(OSError):
                    os.unlink(candidate)
            return text
    raise TerminalError(
        f"{path} does not exist here; submit the job with deploy mode client, or hand it over by --files"
    )


def job_arguments(prog: str, description: str, own: Mapping[str, str]) -> argparse.ArgumentParser:
    """
    Return a parser of a job's arguments: its own, its connection, and the processes to end with.

    :param own: names of its own, and what each is.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description)
    for name, what in own.items():
        parser.add_argument(f"--{name}", required=True, help=what)
    parser.add_argument(
        "--connection", required=True, help="JSON of the connection, mode 0600; removed once read"
    )
    parser.add_argument(
        "--watch-pid",
        type=int,
        action="append",
        default=[],
        help="end when this process is gone",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job, and return its exit status."""
    own = {"plan": "JSON of the plan"}
    options = job_arguments("job.py", "Run a changefeed export plan on Spark.", own).parse_args(arguments)
    watch(options.watch_pid, say)
    try:
        # Both before either is parsed: the connection's file is removed in any case.
        content, secret = read_handed(options.plan), read_handed(options.connection, remove=True)
        plan = Plan.from_json(content, where=options.plan)
        connection = JobConnection.from_json(secret, where=options.connection)
        store = ExportStore(plan.path, plan.feed, connection.storage_options)
        result = run_plan(lambda: session(f"changefeed {plan.feed} {plan.run}"), store, plan, connection)
    except Exception as error:
        say(error_text(error))
        return 1
    say(
        f"changefeed done: {result.rows} rows, {size_text(result.size)}, in {result.units} units, "
        f"{result.seconds:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
