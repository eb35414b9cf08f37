# SPDX-License-Identifier: Apache-2.0
"""
The one file that ``spark-submit`` runs, for every kind of job; it ends with the process that started it.

It can be started any way, and twice. Its last line says how it ended, and a receipt beside the spec or the
task says it to who waits for it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.codec import Document, encode
from airflow_changefeed.core.feed import counted
from airflow_changefeed.exceptions import TerminalError, error_text
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.export.result import RESULT, TaskResult, size_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_SECONDS = 1.0
#: A shell's exit status for a process that SIGTERM ended.
EXIT_STATUS = 143


def is_alive(pid: int) -> bool:
    """Whether a process of this machine exists; a zombie process does not count."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        # Without /proc the signal's answer decides.
        return True


def watch(
    pids: Sequence[int], say: Callable[[str], None], end: Callable[[int], object] = os._exit
) -> threading.Thread:
    """
    End this process at once when its parent, or one of some other processes of this machine, is gone.

    Under ``spark-submit`` the parent is Spark's own process, which ends with us; the tasks end with it.

    :param pids: others to watch, for example the Airflow task that submitted us.
    :param say: takes one line.
    """
    parent = os.getppid()

    def run() -> None:
        pause = threading.Event()
        while not pause.wait(_SECONDS):
            gone = [pid for pid in pids if not is_alive(pid)]
            if os.getppid() != parent or gone:
                say(
                    f"changefeed job ends, because process {gone[0] if gone else parent} that started "
                    "the job is gone"
                )
                end(EXIT_STATUS)
                return

    thread = threading.Thread(target=run, name="changefeed watch", daemon=True)
    thread.start()
    return thread


#: What does the tasks of each kind: a module beside this one, its function, and the class of the task. Only
#: the module of a job's own kind is imported; a document names a kind, and no module.
TASKS = {
    "changefeed snapshot task": ("snapshot_job", "run_ranges", "RangesToRead"),
    "changefeed fold": ("fold", "run_fold", "FoldTask"),
    "changefeed merge task": ("merge", "run_merge", "MergeTask"),
    "changefeed reconcile task": ("reconcile", "run_comparison", "ReconcileTask"),
}
#: Environment variables that hold a connection, or name a file with it.
TEXT_VARIABLE, FILE_VARIABLE = "CHANGEFEED_CONNECTION", "CHANGEFEED_CONNECTION_FILE"


def say(line: str) -> None:
    """Write one line for readers of the job's output; Airflow's task log shows it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def session(app_name: str) -> SparkSession:
    """Return the session that ``spark-submit`` has set up."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.appName(app_name).getOrCreate()


def read_handed(path: str, *, remove: bool = False) -> str:
    """Read a file that was handed over, also in the working folder; ``remove`` it if it holds secrets."""
    for candidate in (path, os.path.basename(path)):
        if os.path.exists(candidate):
            with open(candidate, encoding="utf-8") as file:
                text = file.read()
            if remove:
                with contextlib.suppress(OSError):
                    os.unlink(candidate)
            return text
    raise TerminalError(
        f"{path} does not exist here; submit the job with deploy mode client, or pass it with --files"
    )


def read_connection(path: str | None) -> JobConnection:
    """
    Read the connection that a job was given: a file of its own, or a secret of the cluster.

    :param path: of the job's own file; None where it has none.
    :raises TerminalError: there is none, or it is damaged.
    """
    if path is not None:
        return JobConnection.from_json(read_handed(path, remove=True), named=path)
    if file := os.environ.get(FILE_VARIABLE):
        return JobConnection.from_json(read_handed(file), named=file)
    if text := os.environ.get(TEXT_VARIABLE):
        return JobConnection.from_json(text, named=TEXT_VARIABLE)
    raise TerminalError(
        "no connection: pass --connection, or store the output of the command job-connection as a "
        f"secret of the cluster, in the environment variable {TEXT_VARIABLE} or in a file that "
        f"{FILE_VARIABLE} names"
    )


def run_task(
    spark: Callable[[], SparkSession],
    task: Document,
    connection: JobConnection,
    report: Callable[[str], None],
) -> Any:
    """
    Do a task of any kind, and return its facts.

    :param spark: makes or gives the session; not called for what is refused by manifests.
    :param report: takes one line of progress.
    :raises ChangefeedError: ours, also when it was raised in a task of Spark.
    """
    module, function, _ = TASKS[task.KIND]
    run = getattr(import_module(f"airflow_changefeed.spark.{module}"), function)
    return run(spark, task, connection, report)


def read_task(path: str) -> Any:
    """Read a task of any kind; raise TerminalError if it is of none that is known here, or damaged."""
    text = read_handed(path)
    try:
        kind = json.loads(text)["kind"]
    except (ValueError, TypeError, KeyError):
        raise TerminalError(f"{path} is damaged: it does not name a kind of task") from None
    if not isinstance(kind, str) or kind not in TASKS:
        raise TerminalError(f"{path} is a {kind}, which is not a task of a Spark job")
    module, _, name = TASKS[kind]
    task: type[Document] = getattr(import_module(f"airflow_changefeed.spark.{module}"), name)
    return task.from_json(text, named=path)


def do_task(path: str, connection: str | None) -> None:
    """Do a task with the connection of a file, and leave a receipt beside it, whatever becomes of it."""
    try:
        handed, task = read_connection(connection), read_task(path)
        name = f"{task.KIND.removesuffix(' task')} {task.feed} {getattr(task, 'run', '')}".rstrip()
        facts = run_task(lambda: session(name), task, handed, say)
    except Exception as error:
        with suppress(OSError):  # the error is what counts
            _leave(path, TaskResult(error=error_text(error)))
        raise
    _leave(path, TaskResult({} if facts is None else encode(facts)))


def _leave(path: str, result: TaskResult) -> None:
    """Write the receipt beside a task, whole or not at all."""
    receipt = Path(path).with_name(RESULT)
    new = receipt.with_suffix(".new")
    new.write_text(result.to_json(), encoding="utf-8")
    new.replace(receipt)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job, and return its exit status."""
    parser = argparse.ArgumentParser(prog="job.py", description="Run a job of changefeeds on Spark.")
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--spec", help="URI of the spec of an export, or of a list of specs")
    wanted.add_argument("--task", help="JSON of any other task; the result is written beside it")
    parser.add_argument(
        "--connection",
        help="JSON of the connection, mode 0600; removed after it was read (default: the file that "
        f"{FILE_VARIABLE} names, else the text in {TEXT_VARIABLE})",
    )
    parser.add_argument(
        "--watch-pid", type=int, action="append", default=[], help="end when this process has ended"
    )
    options = parser.parse_args(arguments)
    watch(options.watch_pid, say)
    started = time.monotonic()
    try:
        if options.task is not None:
            do_task(options.task, options.connection)
            return 0
        from airflow_changefeed.spark.export_job import run_spec

        connection = read_connection(options.connection)
        result = run_spec(lambda: session("changefeed export"), options.spec, connection, say)
    except Exception as error:
        say(error_text(error))
        return 1
    say(
        f"changefeed done: {counted(result.rows, 'row')}, {size_text(result.size)}, in "
        f"{counted(result.units, 'unit')}, "
        f"{time.monotonic() - started:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
