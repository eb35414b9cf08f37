# SPDX-License-Identifier: Apache-2.0
"""Compile the installation and each case's filled templates."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from queue import SimpleQueue

from tests.examples import examples
from tests.tools.tsql.assemblies import AssembliesMissingError, fetch
from tests.tools.tsql.captures import CaptureCase, captures
from tests.tools.tsql.checker import Checker, CompilerError
from tests.tools.tsql.filled import filled_feed
from tests.tools.tsql.filled_captures import COLLATION, filled_capture
from tests.tools.tsql.findings import AZURE, Finding, Job, Result, Text
from tests.tools.tsql.tables import Case, cases, quoted


def install_texts(schema: str) -> Iterator[Text]:
    """Go over the batches of the installation, each named by its first line of code."""
    from airflow_changefeed.sql.mssql import install_script

    for number, sql in enumerate(install_script(schema), start=1):
        yield Text(f"install batch {number} ({_title(sql)})", sql, holds_templates=True)


def agent_texts() -> Iterator[Text]:
    """Go over the script that the page for DBAs gives; the catalog has what it calls in msdb."""
    script = examples("how-to/maintain-feeds.md#drain-and-purge-by-sql-server-agent", {}, "sql")[1]
    for number, sql in enumerate(script.replace("msdb.dbo.", "dbo.").split("\ngo\n")[1:], start=1):
        yield Text(f"agent jobs, batch {number}", sql)


def feed_texts(case: Case) -> Iterator[Text]:
    """Go over what setup_feed executes for one table, and the event table itself."""
    for number, sql in enumerate(case.event_table(), start=1):
        yield Text(f"event table {case.name}, statement {number}", sql)
    kind = "serialized" if case.serialized else "outbox"
    for name, sql in filled_feed(case).items():
        yield Text(f"{name} ({kind}, {case.shard_type}, {len(case.key)} key columns)", sql)


def capture_texts(case: CaptureCase) -> Iterator[Text]:
    """Go over what enable_capture executes, and the captured tables themselves."""
    from airflow_changefeed.sql import fill, load_sql
    from airflow_changefeed.sql.mssql import install_tokens

    for number, sql in enumerate(case.make(COLLATION), start=1):
        yield Text(f"tables of capture {case.name}, statement {number}", sql)
    of = f"(capture of {len(case.tables)} tables, {case.shard_type}, {case.key_change})"
    feed = filled_feed(case.feed)
    # What events.batch adds: the model passes over `alter table`.
    feed["state.table"] = feed["state.table"].replace(
        "    constraint", "    events bigint not null,\n    constraint", 1
    )
    if not case.with_feed:
        yield Text("schema", f"create schema {quoted(case.installed_in)}")
        yield Text("sequence", f"create sequence {quoted(case.installed_in)}.[sequence] as bigint")
        tokens = install_tokens(case.installed_in)
        yield Text("shard_text", fill(load_sql("mssql/install/shard_text.function.sql"), tokens))
        needed = ("state.table", "outbox.table", "balance.table", "waiting_shards.function")
        feed = {name: feed[name] for name in needed}
    for name, sql in (*feed.items(), *filled_capture(case).items()):
        yield Text(f"{name} {of}", sql)


def jobs(chosen: list[Case], captured: list[CaptureCase]) -> Iterator[Job]:
    """Go over the databases: each has the installation, and an event table with its feed, or a capture."""
    for capture in captured:
        installed = install_texts(capture.installed_in) if capture.with_feed else ()
        yield Job((*installed, *capture_texts(capture)), capture.feed.temporary(), server=capture.server)
    kinds = set()
    for case in chosen:
        installed = (
            *install_texts(case.installed_in),
            *(agent_texts() if case.installed_in == "changefeed" else ()),
        )
        texts = (*installed, *feed_texts(case))
        yield Job(texts, case.temporary())
        if case.serialized not in kinds:
            kinds.add(case.serialized)
            new = replace(case, filegroup="PRIMARY", compression="row")
            yield Job((*installed, *feed_texts(new)), case.temporary(), server=AZURE)


def _title(sql: str) -> str:
    lines = (line.strip() for line in sql.splitlines())
    return next((line[:80] for line in lines if line and not line.startswith("--")), "empty")


def _prove(checker: Checker) -> None:
    """See that the compiler finds what is wrong, or finding nothing would say nothing."""
    view = Text("proof", "create view dbo.proof as\nselect missing from dbo.missing with (nolock)")
    found = {(finding.rule, finding.line) for finding in checker.check(Job((view,))).findings}
    if found != {("reference", 2), ("dirty_read", 2)}:
        raise CompilerError(f"Microsoft's compiler did not find what is wrong on purpose, but {found}")


def _compile(jobs: Iterable[Job]) -> Iterator[Result]:
    """Compile databases side by side, a compiler for each processor, and give the results in their order."""
    idle: SimpleQueue[Checker] = SimpleQueue()

    def check(job: Job) -> Result:
        checker = idle.get()
        try:
            return checker.check(job)
        finally:
            idle.put(checker)

    with ExitStack() as stack:
        folder, workers = fetch(), os.cpu_count() or 1
        threads = ThreadPoolExecutor(workers)
        stack.callback(threads.shutdown, cancel_futures=True)
        for _ in range(workers):
            checker = stack.enter_context(Checker(folder))
            _prove(checker)
            idle.put(checker)
        yield from threads.map(check, jobs)


def run(chosen: list[Case], captured: list[CaptureCase]) -> tuple[list[str], int]:
    """
    Compile the cases.

    :return: what is wrong, and how many statements were compiled.
    :raises AssembliesMissingError: the compiler could not be had.
    :raises CompilerError: it did not run.
    """
    findings: dict[Finding, None] = {}
    compiled = 0
    for result in _compile(jobs(chosen, captured)):
        findings |= dict.fromkeys(result.findings)
        compiled += result.objects
    return [str(finding) for finding in findings], compiled


def main() -> int:
    """Print what is wrong; 1 if anything is, or if the check could not run."""
    started = time.monotonic()
    chosen, captured = cases(), captures()
    try:
        wrong, compiled = run(chosen, captured)
    except (AssembliesMissingError, CompilerError, ImportError) as error:
        wrong, compiled = [f"the T-SQL was not compiled: {error}"], 0
    for sentence in wrong:
        print(f"FAILED: {sentence}")
    seconds = time.monotonic() - started
    made = f"{len(chosen)} feeds, {len(captured)} captures, {compiled} statements"
    print(f"T-SQL: {made}, {seconds:.0f} s, {len(wrong)} findings")
    return 1 if wrong or not compiled else 0
