# SPDX-License-Identifier: Apache-2.0
"""Look after exports: verify them, clean up, and fail or branch when a consumer's frontier is too old."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_changefeed.connections.connection import clean_values, without_secrets
from airflow_changefeed.connections.output import storage_options, table_of_export, table_to_verify
from airflow_changefeed.core.export_plan import KEEP_FOR
from airflow_changefeed.core.feed import parse_shards
from airflow_changefeed.core.values import duration, optional, read_value, whole
from airflow_changefeed.exceptions import InvalidArgumentError, visible
from airflow_changefeed.export.request import parse_feeds
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.observability import metrics
from airflow_changefeed.tasks.arguments import (
    MAX_AGE,
    NamesConnections,
    check_arguments,
    check_consumer_name,
    check_name,
    check_window,
)
from airflow_changefeed.tasks.context import reports_errors, run_name, run_window
from airflow_changefeed.version_compat import BaseBranchOperator

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_changefeed.core.feed import Shard
    from airflow_changefeed.doctor.freshness import Freshness
    from airflow_changefeed.export.orphans import Report


#: Maximum number of faults in the result and the error; the log names all.
MOST_NAMED = 100
#: A century.
KEPT = duration(shortest=timedelta(0), longest=timedelta(days=36_525))


class ChangefeedVerifyOperator(NamesConnections, BaseOperator):
    """
    Read an export again and compare it with its manifests; fail if anything is damaged.

    Verifies the units that touch the window. The window is the task's own; else that of the run's ``params``
    (``window_start``, ``window_end``), if the DAG has them; else the run's data interval or partition. A run
    without a window verifies the whole export; ``sample_days`` verifies some of its days. Damage fails the
    task at once, because a retry would find the same damage. Leftovers, which no manifest names, are logged.

    The result (XCom), also of a task that found damage, is ``{"feed", "path", "units", "files", "rows",
    "bytes", "damage", "leftovers", "faults"}``; each fault is ``{"severity", "code", "place", "what",
    "remedy", "shard", "unit", "path"}``, the first 100 of them.

    :param feed: name of the feed, the table's. (templated)
    :param path: root of the export, a local path or an fsspec URL. (templated)
    :param path_conn_id: Airflow connection whose extra holds the fsspec storage options of ``path``.
    :param changefeed_conn_id: Airflow connection of the feed's database, which shows the units that history
        was inserted into since; None skips this check.
    :param catalog_conn_id: Airflow connection of an Iceberg table's catalog: the table is compared, too, if
        the whole export is verified. A Delta table needs no connection.
    :param shards: shards to verify; None for all that were exported. (templated)
    :param sample_days: number of days of the whole export to verify instead of a window. Each run draws its
        days again, so that damage in old, unread data is found, too.
    :param window_start: inclusive, ISO 8601 with a zone. (templated)
    :param window_end: exclusive, likewise. (templated)
    """

    template_fields: Sequence[str] = ("feed", "path", "window_start", "window_end", "shards")

    def __init__(
        self,
        *,
        feed: str,
        path: str,
        path_conn_id: str | None = None,
        changefeed_conn_id: str | None = None,
        catalog_conn_id: str | None = None,
        shards: Sequence[Shard | str] | None = None,
        sample_days: int | None = None,
        window_start: datetime | str | None = None,
        window_end: datetime | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.feed = feed
        self.path = path
        self.path_conn_id = path_conn_id
        self.changefeed_conn_id = changefeed_conn_id
        self.catalog_conn_id = catalog_conn_id
        self.shards = shards
        self.sample_days = sample_days
        self.window_start = window_start
        self.window_end = window_end
        self._check()

    def _check(self) -> None:
        check_arguments(
            self,
            (check_name, "feed", self.feed),
            (check_name, "path", self.path),
            (read_value, "shards", self.shards, parse_shards),
            (check_window, self.window_start, self.window_end),
            (_check_sample, self.sample_days, self.window_start),
            values={"sample_days": optional(whole(1, unit="days"))},
        )

    @reports_errors
    def execute(self, context: Context) -> dict[str, Any]:
        """Verify the run's window."""
        self._check()
        what, report = self._verify(context)
        for fault in report.damage:
            self.log.error("%s", fault)
        for fault in report.leftovers:
            self.log.warning("%s", fault)
        self.log.info("Feed %s, %s: %s", report.feed, what, report.summary)
        result = report.to_dict(most=MOST_NAMED)
        if report.damage:
            # Airflow keeps no result of a task that fails.
            context["ti"].xcom_push(key="return_value", value=result)
        report.check(most=MOST_NAMED)
        return result

    def _verify(self, context: Context) -> tuple[str, Report]:
        """Return what was verified, in words, and what was found."""
        from airflow_changefeed.export.verify import verify_export, verify_sample

        options = storage_options(self.path, self.path_conn_id)
        source = ChangefeedHook(self.changefeed_conn_id).source() if self.changefeed_conn_id else None
        shards = parse_shards(self.shards)
        if self.sample_days is not None:
            # Who clears the task has the same days again.
            days, seed = self.sample_days, run_name(context).rpartition("/")[0]
            report = verify_sample(self.path, self.feed, days, seed, shards, options, source=source)
            return f"a sample of {days} days", report
        window = run_window(context, self.window_start, self.window_end)
        start, end = (window.start, window.end) if window else (None, None)
        table = table_to_verify(self.path, self.feed, options, self.catalog_conn_id)
        report = verify_export(self.path, self.feed, start, end, shards, options, source=source, table=table)
        return str(window or "the whole export"), report


def _check_sample(days: object, window_start: object) -> None:
    if days is not None and window_start is not None:
        raise InvalidArgumentError("sample_days draws from the whole export: omit sample_days, or the window")


class ChangefeedCleanOperator(NamesConnections, BaseOperator):
    """
    Remove the files that a Delta Lake or Iceberg table of an export has replaced.

    These are the files of replaced and failed attempts, which no manifest names, but never those of a running
    export. Files of different units are not joined, because each unit must stay replaceable: if files are
    small, export longer units.

    The result (XCom) is ``{"feed", "path", "removed"}`` with the number of files; the log names them.

    :param feed: name of the feed, the table's. (templated)
    :param path: root of the export, a local path or an fsspec URL. (templated)
    :param path_conn_id: Airflow connection whose extra holds the fsspec storage options of ``path``.
    :param catalog_conn_id: Airflow connection of an Iceberg table's catalog.
    :param keep_for: how long replaced versions of the table can be read; longer than any reader takes.
    """

    template_fields: Sequence[str] = ("feed", "path")

    def __init__(
        self,
        *,
        feed: str,
        path: str,
        path_conn_id: str | None = None,
        catalog_conn_id: str | None = None,
        keep_for: timedelta | float | str = KEEP_FOR,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.feed = feed
        self.path = path
        self.path_conn_id = path_conn_id
        self.catalog_conn_id = catalog_conn_id
        self.keep_for = keep_for
        self._check()

    def _check(self) -> None:
        check_arguments(
            self,
            (check_name, "feed", self.feed),
            (check_name, "path", self.path),
            values={"keep_for": KEPT},
        )

    @reports_errors
    def execute(self, context: Context) -> dict[str, Any]:
        """Clean up."""
        from airflow_changefeed.formats.base import clean
        from airflow_changefeed.output.read import export_there
        from airflow_changefeed.output.store import ExportStore

        self._check()
        options = storage_options(self.path, self.path_conn_id)
        store = ExportStore(self.path, self.feed, options)
        export_there(store)
        removed = clean(store, table_of_export(store, options, self.catalog_conn_id), KEPT(self.keep_for))
        for path in removed:
            self.log.info("Removed %s", visible(path))
        self.log.info("Feed %s: files removed: %d", self.feed, len(removed))
        return {"feed": self.feed, "path": without_secrets(self.path), "removed": len(removed)}


#: Key of the branching operator's XCom with the consumers; its result is the branch.
CONSUMERS_KEY = "consumers"


def _check_feeds(feed: object) -> None:
    if feed is not None and not parse_feeds("feed", feed):
        raise InvalidArgumentError("feed is empty: name at least one feed, or pass None for all")


class ChangefeedFreshnessOperator(NamesConnections, BaseOperator):
    """
    Fail when a consumer's frontier is older than ``max_age``, with the reasons that ``doctor`` finds.

    A late consumer fails the task at once; the error names each late consumer with age and reason. A database
    that does not answer is a transient error. A feed that cannot be read does not hide the other feeds.

    The result (XCom), also of a task that fails, is a list with ``{"feed", "consumer", "complete_until",
    "age_seconds", "is_fresh", "reasons", "warnings", "files_checked_at", "error"}`` for each consumer, and
    for each feed that could not be read; a reason or warning is ``{"code", "place", "what", "remedy"}``.

    :param max_age: how old a frontier may be, a ``timedelta``, seconds, or a text such as ``2h``. For an
        export, choose more than its schedule's interval plus the time that a run takes.
    :param feed: name or pattern of feeds, or a list of them; None for all that have consumers. (templated)
    :param consumer: name of the consumer; None for all. (templated)
    :param changefeed_conn_id: Airflow connection of the feeds' database. (templated)
    """

    template_fields: Sequence[str] = ("feed", "consumer", "changefeed_conn_id")

    def __init__(
        self,
        *,
        max_age: timedelta | float | str,
        feed: str | Sequence[str] | None = None,
        consumer: str | None = None,
        changefeed_conn_id: str = ChangefeedHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_age = max_age
        self.feed = feed
        self.consumer = consumer
        self.changefeed_conn_id = changefeed_conn_id
        self._check()

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        """Return what Airflow's servers know of the task: the page shows how old a frontier may be."""
        return frozenset({*super().get_serialized_fields(), "max_age"})

    def _check(self) -> None:
        consumer = [] if self.consumer is None else [(check_consumer_name, self.consumer)]
        check_arguments(
            self,
            (_check_feeds, self.feed),
            *consumer,
            (check_name, "changefeed_conn_id", self.changefeed_conn_id),
            values={"max_age": MAX_AGE},
        )

    def _freshness(self, context: Context, key: str) -> Freshness:
        """Check, log each consumer, and push the rows, also if the task fails."""
        self._check()
        hook = ChangefeedHook(self.changefeed_conn_id)
        found = hook.freshness(self.max_age, feed=self.feed, consumer=self.consumer)
        self.log.info("%s", found.text)
        metrics.watched(found)
        context["ti"].xcom_push(key=key, value=clean_values(found.to_dicts()))
        return found

    @reports_errors
    def execute(self, context: Context) -> Any:
        """Check."""
        found = self._freshness(context, "return_value")
        found.check()
        return found.to_dicts()


class ChangefeedFreshnessBranchOperator(ChangefeedFreshnessOperator, BaseBranchOperator):
    """
    Follow one branch if all consumers' frontiers are at most ``max_age`` old, and another branch otherwise.

    Takes the arguments of :class:`ChangefeedFreshnessOperator`. If no consumer is late, but a feed cannot be
    read, the task fails. The result (XCom) is the branch; the key ``consumers`` has the rows.

    :param follow_task_ids_if_fresh: tasks or task groups to run if no consumer is late.
    :param follow_task_ids_if_stale: tasks or task groups to run if a consumer is late.
    """

    def __init__(
        self,
        *,
        max_age: timedelta | float | str,
        follow_task_ids_if_fresh: str | list[str],
        follow_task_ids_if_stale: str | list[str],
        feed: str | Sequence[str] | None = None,
        consumer: str | None = None,
        changefeed_conn_id: str = ChangefeedHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            max_age=max_age, feed=feed, consumer=consumer, changefeed_conn_id=changefeed_conn_id, **kwargs
        )
        self.follow_task_ids_if_fresh = follow_task_ids_if_fresh
        self.follow_task_ids_if_stale = follow_task_ids_if_stale

    def execute(self, context: Context) -> Any:
        """Follow a branch."""
        return BaseBranchOperator.execute(self, context)

    @reports_errors
    def choose_branch(self, context: Context) -> str | Iterable[str]:
        """Return the tasks to run."""
        found = self._freshness(context, CONSUMERS_KEY)
        if found.late:
            return self.follow_task_ids_if_stale
        found.check()
        return self.follow_task_ids_if_fresh
