# SPDX-License-Identifier: Apache-2.0
"""
What a job of an export is given, and what it says of its end: a spec and its receipts, in the output.

The spec is a plan of one feed; a job may be given a list of them. Whatever starts the job hands over its URI,
and may do so twice: each start draws a token of its own, leaves out what other starts have committed, and
leaves a receipt. The receipt says how it ended; what the launcher says of it decides nothing.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from ulid import ULID

from airflow_changefeed.core.codec import Document
from airflow_changefeed.core.export_plan import Plan
from airflow_changefeed.exceptions import (
    SpecNotFoundError,
    TerminalError,
    TransientError,
)
from airflow_changefeed.export.planner import committed
from airflow_changefeed.export.result import ExportResult
from airflow_changefeed.output.attempts import (
    Start,
    begun_units,
    check_database,
    committed_before,
    read_start,
)
from airflow_changefeed.output.layout import Layout, parse_job, parse_spec, receipt_attempt
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.storage.files import open_files

#: Specs that are kept for tasks that may be cleared: a month of hours, and more. Older ones go.
_MOST_SPECS = 1000


def write_spec(store: ExportStore, plan: Plan) -> str:
    """Write a plan where its job finds it, and return the URI."""
    for spec in store.specs()[:-_MOST_SPECS]:
        remove_spec(store, spec)
    where = store.layout.spec(plan.attempt)
    store.write_document(where, plan)
    return store.files.url(where)


def read_spec(uri: str, storage_options: Mapping[str, Any] | None = None) -> tuple[ExportStore, Plan]:
    """
    Read a spec, and open its output.

    :param storage_options: for fsspec; may hold secrets.
    :raises InvalidArgumentError: not the URI of a spec.
    :raises SpecNotFoundError: it is gone.
    :raises TerminalError: it is damaged, or another one.
    """
    root, feed, token = parse_spec(uri)
    store = ExportStore(root, feed, storage_options)
    plan = store.read_document(store.layout.spec(token), Plan, uri)
    if plan is None:
        raise SpecNotFoundError(
            f"{uri} does not exist: its task has finished, or a later try has planned again. Run the "
            "task that makes the plan again",
            spec=uri,
        )
    if (plan.feed, plan.attempt) != (feed, token):
        raise TerminalError(
            f"{uri} holds plan {plan.attempt} of feed {plan.feed!r}: the document was moved here from "
            "another place. Run the task that makes the plan again",
            spec=uri,
        )
    # Where the spec lies, whatever it says: who could change it must not have our files elsewhere.
    return store, replace(plan, path=root)


@dataclass(frozen=True)
class SpecList(Document):
    """A job of several feeds below one path: the URIs of their specs."""

    KIND = "changefeed job"

    specs: tuple[str, ...]


def write_job(store: ExportStore, specs: Sequence[str]) -> str:
    """Write what a job is to do for several feeds, the URIs of their specs, and return its URI."""
    for name in sorted(store.files.names(store.layout.jobs))[:-_MOST_SPECS]:
        store.files.remove_file(f"{store.layout.jobs}/{name}")
    where = store.layout.job(str(ULID()))
    store.write_document(where, SpecList(tuple(specs)))
    return store.files.url(where)


def read_job(uri: str, storage_options: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """
    Return the URIs of the specs of a job: that of one spec, or of a list of them.

    :param storage_options: for fsspec; may hold secrets.
    :raises SpecNotFoundError: the list is gone.
    :raises TerminalError: it is damaged.
    """
    found = parse_job(uri)
    if found is None:
        return (uri,)
    root, name = found
    files = open_files(root, storage_options)
    content = files.read(Layout(files.root, "").job(name))
    if content is None:
        raise SpecNotFoundError(f"{uri} does not exist: run the task that makes the plan again", spec=uri)
    specs = SpecList.from_json(content.decode(errors="replace"), named=uri).specs
    for spec in specs:
        if parse_spec(spec)[0] != root:
            raise TerminalError(
                f"{uri} names {spec}, which is not below {root}: somebody has changed the document. Run "
                "the task that makes the plan again",
                spec=spec,
            )
    return specs


def start_plan(draw: Callable[[Plan, int], int], store: ExportStore, plan: Plan) -> Plan:
    """
    Return a spec's plan as this start runs it: with a token of its own, and without what others have
    committed.

    :param draw: see :class:`Draws`.
    :raises ConnectionNotUsableError: the connection leads to another database than the plan's.
    """
    units = {unit.unit: unit.stale_seen for unit in plan.units if not unit.committed_by}
    done = committed_before(store, Start.of(plan), plan.database, units)
    return replace(
        plan,
        attempt=draw(plan, store.highest_attempt(units)),
        spec=plan.attempt,
        units=tuple(committed(done[unit.unit]) if unit.unit in done else unit for unit in plan.units),
    )


class Draws:
    """
    Draws attempt tokens: called with a plan and a token, it returns a higher one.

    If several threads ask at the same time, one of them asks the database for all, over one connection.
    """

    def __init__(self, source: FeedSource) -> None:
        self._source = source
        self._lock = Lock()
        self._waiting: deque[tuple[Plan, int, Future[int]]] = deque()
        self._is_drawing = False

    def __call__(self, plan: Plan, above: int) -> int:
        """
        Draw a token.

        :raises ConnectionNotUsableError: the connection leads to another database than the plan's.
        :raises LockTimeoutError: the database is busy; also where another thread's token had to wait for it.
        """
        token: Future[int] = Future()
        with self._lock:
            self._waiting.append((plan, above, token))
            is_first, self._is_drawing = not self._is_drawing, True
        while is_first and (group := self._next_group()):
            self._draw(group)
        return token.result()

    def _next_group(self) -> deque[tuple[Plan, int, Future[int]]]:
        with self._lock:
            group, self._waiting = self._waiting, deque()
            self._is_drawing = bool(group)
        return group

    def _draw(self, group: deque[tuple[Plan, int, Future[int]]]) -> None:
        try:
            with self._source.connected():
                while group:
                    plan, above, token = group[0]
                    try:
                        check_database(self._source, plan.feed, plan.database)
                        token.set_result(self._source.next_attempt(plan.feed, above=above))
                    except TransientError:
                        # The others would wait as long for the same database.
                        raise
                    except Exception as error:
                        token.set_exception(error)
                    group.popleft()
        except BaseException as error:
            for _, _, token in group:
                token.set_exception(error)
            if not isinstance(error, Exception):
                with self._lock:
                    self._is_drawing = False
                raise


def write_receipt(store: ExportStore, spec: int, attempt: int, result: ExportResult) -> None:
    """Say how a start of a spec ended."""
    store.write_document(store.layout.receipt(spec, attempt), result)


def read_receipt(store: ExportStore, spec: int) -> ExportResult | None:
    """
    Return how a spec's job ended, once it is over, and take back what a failed one could not.

    Of several starts one that succeeded counts, since it has committed all units; else the last one.

    :return: None when no start left a receipt, because it was killed; the next attempt cleans up after it.
    :raises TerminalError: a receipt is damaged, or of another spec.
    """
    found: list[ExportResult] = []
    for name in store.files.names(store.layout.spec_folder(spec)):
        attempt = receipt_attempt(name)
        if attempt is None:
            continue
        where = store.layout.receipt(spec, attempt)
        result = ExportResult.from_json(
            (store.files.read(where) or b"").decode(errors="replace"), named=where
        )
        if (result.spec, result.attempt) != (spec, attempt):
            raise TerminalError(
                f"{where} is the receipt of attempt {result.attempt} at plan {result.spec}: the "
                "document was moved here from another place. Run the task that makes the plan again",
                receipt=where,
            )
        found.append(result)
        if result.error is not None:
            # In an outage the job could not withdraw what it had placed.
            store.withdraw_uncommitted(begun_units(read_start(store, attempt)), attempt)
        # Tasks of a failed job may have written on until its processes ended.
        store.files.remove(store.layout.writing(attempt))
        store.files.prune(store.layout.attempt(attempt), store.layout.attempts)
        store.abandon_uploads(attempt)
    done = [result for result in found if result.error is None]
    return next(reversed(done or found), None)


def mark_finished(store: ExportStore, spec: int) -> None:
    """Say that a spec's task has finished: a job that is started again exports everything again."""
    store.files.write(store.layout.finished(spec), b"{}")


def is_finished(store: ExportStore, spec: int) -> bool:
    """Whether a spec's task has finished."""
    return store.files.size(store.layout.finished(spec)) is not None


def remove_spec(store: ExportStore, spec: int) -> None:
    """Remove a spec and its receipts, which nobody will read again."""
    store.files.remove(store.layout.spec_folder(spec))


@dataclass(frozen=True)
class JobConnection(Document):
    """
    How a Spark job reaches the feed and the output.

    :param source: as ``FeedSource.describe`` gives it.
    :param storage_options: for fsspec.
    """

    KIND = "changefeed connection"

    source: Mapping[str, Any] = field(repr=False)
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def save(self, path: str) -> None:
        """Write the connection to a new file that only its owner reads."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(self.to_json())
