# SPDX-License-Identifier: Apache-2.0
"""The end of an export by a job that any operator starts: cursors, receipt and event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_changefeed.connections.output import lake_table, storage_options
from airflow_changefeed.exceptions import own_error
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.links.changefeed import WINDOW_LINKS
from airflow_changefeed.observability import metrics
from airflow_changefeed.tasks.arguments import NamesConnections
from airflow_changefeed.tasks.context import reports_errors
from airflow_changefeed.transfers.export import (
    ConcludesExports,
    ExportRun,
    add_alias,
    conclude,
    export_lineage,
)
from airflow_changefeed.version_compat import AirflowFailException, AirflowSkipException

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_changefeed.core.export_plan import Plan
    from airflow_changefeed.export.result import ExportResult
    from airflow_changefeed.output.store import ExportStore


class ChangefeedFinishOperator(ConcludesExports, NamesConnections, BaseOperator):
    """
    Read the receipt of a job, then move the cursors and emit the event; part of
    :func:`~airflow_changefeed.transfers.group.changefeed_export_group`.

    The result is that of a ``ChangefeedToParquetOperator``.

    :param plan_task_id: the task that plans.
    :param export: with many feeds, the item of the plan's result for the feed to finish.
    :param submits: the ids of the tasks that start the job, for messages.
    :param changefeed_conn_id: Airflow connection of the feed's database.
    :param path_conn_id: Airflow connection of the output.
    :param catalog_conn_id: Airflow connection of an Iceberg table's catalog.
    :param lock_timeout: seconds to wait for another writer; None takes the connection's.
    """

    operator_extra_links = WINDOW_LINKS
    window_begin: datetime | None = None

    def __init__(
        self,
        *,
        plan_task_id: str,
        export: Mapping[str, str] | None = None,
        submits: Sequence[str] = (),
        changefeed_conn_id: str = ChangefeedHook.default_conn_name,
        path_conn_id: str | None = None,
        catalog_conn_id: str | None = None,
        lock_timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        add_alias(self)
        self.plan_task_id = plan_task_id
        self.export = export
        self.submits = submits
        self.changefeed_conn_id = changefeed_conn_id
        self.path_conn_id = path_conn_id
        self.catalog_conn_id = catalog_conn_id
        self.lock_timeout = lock_timeout

    @property
    def calendar_task_id(self) -> str:
        """The task whose calendar the page has."""
        return self.plan_task_id

    @reports_errors
    def execute(self, context: Context) -> dict[str, Any]:
        """Finish what the job has committed; fail where it has not."""
        from airflow_changefeed.export.job_spec import JobConnection, mark_finished, read_receipt, read_spec
        from airflow_changefeed.output.attempts import check_database
        from airflow_changefeed.output.layout import parse_spec

        uri = self._spec(context["ti"]) if self.export is None else self._spec_of(self.export)
        hook = ChangefeedHook(self.changefeed_conn_id, lock_timeout=self.lock_timeout)
        source, variables = hook.source(), hook.variables()
        options = storage_options(parse_spec(uri)[0], self.path_conn_id)
        store, plan = read_spec(uri, options)
        self.window_begin = plan.windows[0].start if plan.windows else None
        check_database(source, plan.feed, plan.database)
        # Unless the export is concluded.
        self.keep_lineage(lambda: export_lineage(source, plan))
        result = self._succeeded(uri, plan, read_receipt(store, plan.attempt))
        self._check_whole(store, plan)
        table = lake_table(store, plan.options, options, self.catalog_conn_id)
        run = ExportRun(source, variables, JobConnection(source.describe(), options))
        with metrics.counting_superseded(plan.feed, plan.consumer):
            done = conclude(self, context, run, store, plan, result, table=table)
        mark_finished(store, plan.attempt)
        return done

    def _spec_of(self, export: Mapping[str, str]) -> str:
        if "error" in export:
            error = own_error(export["error"])
            raise AirflowFailException(
                f"feed {export['feed']!r} could not be planned: {type(error).__name__}: {error}. When "
                f"the cause is gone, clear {self.plan_task_id} and the tasks after it; this exports the "
                "window of all feeds again"
            )
        return export["spec_uri"]

    def _spec(self, ti: Any) -> str:
        """Return the spec's URI of a plan that has succeeded; an XCom alone may be an earlier run's."""
        index = ti.map_index if ti.map_index >= 0 else None
        states = ti.get_task_states(
            dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[self.plan_task_id], map_index=index
        )
        found = {str(state) for state in states.get(ti.run_id, {}).values()}
        if found == {"skipped"}:
            raise AirflowSkipException(f"task {self.plan_task_id} was skipped")
        uri = ti.xcom_pull(task_ids=self.plan_task_id, key="spec_uri", map_indexes=ti.map_index)
        if found != {"success"} or not uri:
            raise AirflowFailException(
                f"task {self.plan_task_id} has left no spec: clear that task, and the tasks after it"
            )
        return str(uri)

    def _succeeded(self, uri: str, plan: Plan, result: ExportResult | None) -> ExportResult:
        submits = " and ".join(self.submits) or "the task that starts the job"
        if result is None:
            raise AirflowFailException(
                f"the job has left no receipt beside {uri}: the job was not started, or was killed. "
                f"Clear {submits} and the tasks after it; the job then does the rest. Or clear "
                f"{self.plan_task_id}, which plans again"
            )
        try:
            with metrics.counting_superseded(plan.feed, plan.consumer):
                result.raise_error()
        except Exception as error:
            raise AirflowFailException(
                f"{type(error).__name__}: {error}. When the cause is gone, clear {submits} and the "
                "tasks after it; the job then does the rest. If rows have changed since, clear "
                f"{self.plan_task_id}, which plans again"
            ) from None
        return result

    def _check_whole(self, store: ExportStore, plan: Plan) -> None:
        """Refuse where a start that came later has replaced files, and was killed before it was done."""
        units = [planned.unit for planned in plan.units]
        manifests = store.each(store.read, units)
        whole = store.each(lambda manifest: manifest is not None and store.is_whole(manifest), manifests)
        broken = [unit for unit, is_whole in zip(units, whole, strict=True) if not is_whole]
        if broken:
            submits = " and ".join(self.submits) or "the task that starts the job"
            raise AirflowFailException(
                f"{len(broken)} of {len(units)} units are no longer whole, the first {broken[0]}: "
                f"another start of the job replaced them and was stopped. Clear {submits} and the tasks "
                "after it"
            )
