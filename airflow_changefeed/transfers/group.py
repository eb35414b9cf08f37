# SPDX-License-Identifier: Apache-2.0
"""
An export of one feed or of many by one job, which any operator starts: a task that plans, one that starts the
job, and one that finishes, for each feed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, TaskGroup

from airflow_changefeed.connections.output import publish_program
from airflow_changefeed.exceptions import (
    ChangefeedError,
    InvalidArgumentError,
    TransientError,
    error_text,
    visible,
)
from airflow_changefeed.export.request import choose_feeds, parse_feeds
from airflow_changefeed.observability import metrics
from airflow_changefeed.tasks.arguments import NamesConnections, check_program_path, need_program_path
from airflow_changefeed.tasks.context import reports_errors
from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedSubmitOperator
from airflow_changefeed.transfers.export import ExportOperator
from airflow_changefeed.transfers.finish import ChangefeedFinishOperator
from airflow_changefeed.version_compat import DownstreamTasksSkipped

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from airflow.sdk import Context

    from airflow_changefeed.core.export_plan import ExportOptions, Plan
    from airflow_changefeed.core.feed import Shard
    from airflow_changefeed.output.store import ExportStore
    from airflow_changefeed.sources.base import FeedSource
    from airflow_changefeed.transfers.export import ExportRun

#: What the task that plans pushes, each under its own key.
KEYS = ("spec_uri", "job_uri", "archive_uri", "rows", "units", "tasks")


@dataclass(frozen=True)
class ExportJob:
    """
    The argument of ``submit``: what the planning task finds out in a run.

    The URIs are templates, for templated arguments and f-strings. The sizes are ``XComArg``: as an argument
    of an operator each becomes a number.

    :param spec_uri: spec of what the job exports, in the output, for one feed or many: the job's only
        argument.
    :param job_uri: the job's Python file, in ``program_path``.
    :param archive_uri: the package as a Python archive (``--py-files``), in ``program_path``.
    :param rows: events that are still to be written.
    :param units: export units that are still to be written.
    :param tasks: tasks that Spark will run; further cores stay idle.
    """

    spec_uri: str
    job_uri: str
    archive_uri: str
    rows: Any
    units: Any
    tasks: Any


@dataclass(frozen=True)
class _Planned:
    """A feed's plan, and the numbers of the units of each task that Spark will run."""

    store: ExportStore
    plan: Plan
    spec_uri: str
    tasks: Sequence[set[int]]


def _check_one_way(feed: str) -> None:
    if feed:
        raise InvalidArgumentError("feed and feeds cannot both be given")


class ChangefeedPlanOperator(NamesConnections, ExportOperator):
    """
    Plan the export of a run's window, and write what its job needs into the output; part of
    :func:`changefeed_export_group`.

    The task itself commits units without rows. If a feed has only such units, the tasks that start the job
    are skipped; with ``feeds`` they run, and the job has nothing to do. With ``feeds``, the result (XCom) is
    a list with an item for each feed: ``{"feed", "spec_uri"}``, or ``{"feed", "error"}`` for a feed that
    could not be planned.

    :param program_path: where the job's program goes; None if the tasks that start the job need no program.
    :param program_conn_id: Airflow connection of ``program_path``; None takes ``path_conn_id``.
    :ivar submits: the ids of the tasks that start the job, after this task.
    """

    template_fields = (*ExportOperator.template_fields, "feeds", "exclude", "program_path")
    submits: Sequence[str] = ()

    def __init__(
        self,
        *,
        feeds: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] = (),
        program_path: str | None = None,
        program_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.feeds = feeds
        self.exclude = exclude
        self.program_path = program_path
        self.program_conn_id = program_conn_id
        self._check((check_program_path, self.program_path, self.path))

    def _feed_checks(self) -> list[tuple[Any, ...]]:
        if self.feeds is None:
            return super()._feed_checks()
        return [
            (_check_one_way, self.feed),
            (parse_feeds, "feeds", self.feeds),
            (parse_feeds, "exclude", self.exclude),
        ]

    def _chosen(self, source: FeedSource) -> list[str]:
        return choose_feeds(source, parse_feeds("feeds", self.feeds), parse_feeds("exclude", self.exclude))

    def _check_feed(self, source: FeedSource) -> None:
        if self.feeds is None:
            super()._check_feed(source)
        else:
            self._chosen(source)

    @reports_errors
    def execute(self, context: Context) -> list[dict[str, str]] | None:
        """Plan."""
        self._check((check_program_path, self.program_path, self.path))
        run = self._open(context)
        if self.feeds is None:
            planned = self._plan(context, run, self.feed)
            self._push(context, planned.spec_uri, [planned])
            if planned.plan.is_empty:
                self.log.info("No events are to be written: the job is skipped")
                index = getattr(context["ti"], "map_index", -1)
                raise DownstreamTasksSkipped(  # type: ignore[no-untyped-call] # Airflow's
                    tasks=[(task, index) if index >= 0 else task for task in self.submits]
                )
            return None
        return self._plan_many(context, run, self._chosen(run.source))

    def _plan(self, context: Context, run: ExportRun, feed: str) -> _Planned:
        """Plan a feed; where it has no rows, commit as well."""
        from airflow_changefeed.export.job_spec import write_receipt, write_spec
        from airflow_changefeed.export.parts import cut_tasks, run_here
        from airflow_changefeed.export.planner import make_plan

        store, request = self._request(context, run, feed)
        plan = make_plan(run.source, store, request, partial(metrics.sealed, feed, self.consumer))
        self._log_plan(plan)
        tasks = [{part.unit for part in task} for task in cut_tasks(plan)]
        planned = _Planned(store, plan, write_spec(store, plan), tasks)
        if plan.is_empty:
            plan = replace(plan, spec=plan.attempt)
            write_receipt(store, plan.spec, plan.attempt, run_here(run.source, store, plan, self.log.info))
        return planned

    def _plan_many(self, context: Context, run: ExportRun, feeds: Sequence[str]) -> list[dict[str, str]]:
        from airflow_changefeed.export.job_spec import write_job

        plans: dict[str, _Planned] = {}
        failed: dict[str, ChangefeedError] = {}

        def attempt(feed: str) -> None:
            try:
                plans[feed] = self._plan(context, run, feed)
                failed.pop(feed, None)
            except ChangefeedError as error:
                failed[feed] = error

        with run.source.connected():
            for feed in feeds:
                attempt(feed)
            # What passes has perhaps passed by now; a retry of the task would plan all of them again.
            for feed in [feed for feed, error in failed.items() if isinstance(error, TransientError)]:
                attempt(feed)
        for feed, error in failed.items():
            name = visible(feed)
            self.log.error("Feed %s cannot be planned: %s: %s", name, type(error).__name__, error.message)
        if not plans:
            raise next(iter(failed.values()))
        filled = [planned for planned in plans.values() if planned.tasks] or list(plans.values())[:1]
        self._push(context, write_job(filled[0].store, [planned.spec_uri for planned in filled]), filled)
        return [
            {"feed": feed, "spec_uri": plans[feed].spec_uri}
            if feed in plans
            else {"feed": feed, "error": error_text(failed[feed])}
            for feed in feeds
        ]

    def _push(self, context: Context, uri: str, plans: Sequence[_Planned]) -> None:
        job = archive = ""
        if self.program_path:
            job, archive = publish_program(self.program_path, self.program_conn_id or self.path_conn_id)
        tasks = [task for planned in plans for task in planned.tasks]
        rows = sum(planned.plan.rows for planned in plans)
        units = sum(len(set().union(*planned.tasks)) for planned in plans)
        ti: Any = context["ti"]
        for key, value in zip(KEYS, (uri, job, archive, rows, units, len(tasks)), strict=True):
            ti.xcom_push(key=key, value=value)


def _pulled(plan: BaseOperator, key: str) -> str:
    """Return the template of a value; that of an XComArg would bring those of all mapped tasks."""
    return f"{{{{ ti.xcom_pull(task_ids={plan.task_id!r}, key={key!r}, map_indexes=ti.map_index) }}}}"


def _given(**arguments: Any) -> dict[str, Any]:
    """Leave out what is None: it is for the DAG's ``default_args`` to say."""
    return {name: value for name, value in arguments.items() if value is not None}


def _by_spark(arguments: Mapping[str, Any]) -> Callable[[ExportJob], object]:
    return lambda job: ChangefeedSubmitOperator(
        task_id="submit",
        spec_uri=job.spec_uri,
        tasks=job.tasks,
        **arguments,
    )


def changefeed_export_group(
    *,
    feed: str | None = None,
    feeds: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    path: str | None = None,
    consumer: str | None = None,
    submit: Callable[[ExportJob], object] | None = None,
    group_id: str = "export",
    changefeed_conn_id: str | None = None,
    path_conn_id: str | None = None,
    shards: Sequence[Shard | str] | None = None,
    unit: timedelta | str | None = None,
    window_start: datetime | str | None = None,
    window_end: datetime | str | None = None,
    wait_timeout: timedelta | float | str | None = None,
    options: ExportOptions | Mapping[str, Any] | None = None,
    lock_timeout: float | None = None,
    shape: str | None = None,
    table_format: str | None = None,
    catalog_table: str | None = None,
    catalog_conn_id: str | None = None,
    program_path: str | None = None,
    program_conn_id: str | None = None,
    spark: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> TaskGroup:
    """
    Export the windows of a feed, or of many by one job, which any operator starts: on Kubernetes, Databricks,
    EMR, Livy, or by a shell.

    Three steps: ``plan``, the tasks that ``submit`` creates, and ``finish``, which runs even if those tasks
    failed. With ``feeds``, ``finish`` is mapped over the feeds, so that each feed has its own cursor, asset
    event and failure. Only the job's receipt in the output decides whether the job has succeeded, not the
    state of the tasks that start it. Each of the three may be cleared and retried; a job that is started
    again does the rest. If no events are to be written, only the tasks that start the job are skipped. The
    group may be mapped and backfilled. Batches need a ``ChangefeedToParquetOperator``: their leases cannot
    span tasks.

    The job runs ``<job_uri> --spec <spec_uri>`` with ``<archive_uri>`` as its Python archive, on machines
    that have pyarrow, numpy, fsspec and the source's driver. It reads the connection from the environment
    variable ``CHANGEFEED_CONNECTION``, or from the file that ``CHANGEFEED_CONNECTION_FILE`` names: the output
    of ``airflow-changefeed job-connection``, stored as a secret of the cluster.

    Other arguments are those of :class:`~airflow_changefeed.ChangefeedToParquetOperator`.
    An argument that is None is taken from the DAG's ``default_args``, or is the operator's default.

    :param feed: name of the feed.
    :param feeds: instead of ``feed``: names of feeds, or patterns such as ``myservice.*``. The feeds share
        the path and the consumer's name.
    :param exclude: names or patterns of feeds to leave out of ``feeds``.
    :param path: root of the output.
    :param consumer: name of the consumer, whose cursors move.
    :param submit: called once, inside the group, with an :class:`ExportJob`; creates one or more tasks. None
        creates a task that runs the job with a Spark connection.
    :param group_id: of the task group.
    :param changefeed_conn_id: Airflow connection of the feed's database, for ``plan`` and ``finish``.
    :param path_conn_id: Airflow connection of the output, for ``plan`` and ``finish``.
    :param catalog_conn_id: Airflow connection of the Iceberg catalog, for ``plan`` and ``finish``.
    :param lock_timeout: seconds to wait for another writer; None takes the connection's.
    :param program_path: folder or fsspec URL where ``plan`` puts the job's program, and checks before each
        job that it is unchanged. Everybody who can write there can run code with the job's secrets, so
        writers of the output should not; pass ``path`` itself to accept that they can. Needed with
        ``submit``, and in deploy mode cluster. (templated)
    :param program_conn_id: Airflow connection of ``program_path``; None takes ``path_conn_id``.
    :param spark: arguments of a ``SparkSubmitOperator``, such as ``conn_id``, if ``submit`` is None.
    :param kwargs: arguments of a task, for ``plan``.
    :return: the group.
    :raises InvalidArgumentError: an argument is wrong or missing; ``submit`` made no task; or a batch was
        asked for.
    """
    if submit is not None and spark is not None:
        raise InvalidArgumentError(
            "spark configures the task that is created without submit: give spark or submit, not both"
        )
    if "mode" in kwargs:
        raise InvalidArgumentError(
            "changefeed_export_group exports windows only: the leases of a batch cannot span tasks. Use a "
            "ChangefeedToParquetOperator with mode='batch'"
        )
    connections = _given(changefeed_conn_id=changefeed_conn_id, path_conn_id=path_conn_id)
    shared = {**connections, **_given(catalog_conn_id=catalog_conn_id, lock_timeout=lock_timeout)}
    program = _given(program_path=program_path, program_conn_id=program_conn_id)
    if submit is not None:
        need_program_path(program_path)
        # Another one looks before it starts the job.
        kwargs |= program
    kwargs |= _given(
        feed=feed,
        feeds=feeds,
        exclude=exclude,
        path=path,
        consumer=consumer,
        shards=shards,
        unit=unit,
        window_start=window_start,
        window_end=window_end,
        wait_timeout=wait_timeout,
        options=options,
        shape=shape,
        table_format=table_format,
        catalog_table=catalog_table,
    )
    with TaskGroup(group_id) as group:
        plan = ChangefeedPlanOperator(task_id="plan", **shared, **kwargs)
        output: Any = plan.output
        if submit is None:
            submit = _by_spark({**(spark or {}), **connections, **program})
        submit(ExportJob(*(_pulled(plan, key) for key in KEYS[:3]), *(output[key] for key in KEYS[3:])))
        made: list[Any] = [task for task in group if task is not plan]
        if not made:
            raise InvalidArgumentError(
                f"submit of group {group_id!r} created no task; create an operator inside submit"
            )
        ids = {task.task_id for task in made}
        first = [task for task in made if not ids.intersection(task.upstream_task_ids)]
        last = [task for task in made if not ids.intersection(task.downstream_task_ids)]
        plan.submits = tuple(task.task_id for task in first)
        shared |= {"plan_task_id": plan.task_id, "submits": plan.submits, "trigger_rule": "all_done"}
        finish: Any
        if plan.feeds is None:
            finish = ChangefeedFinishOperator(task_id="finish", **shared)
        else:
            names = {"map_index_template": "{{ task.export['feed'] }}"}
            partial_finish = ChangefeedFinishOperator.partial(task_id="finish", **names, **shared)
            finish = partial_finish.expand(export=output)
        plan >> first
        [plan, *last] >> finish
    return group
