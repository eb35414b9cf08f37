# SPDX-License-Identifier: Apache-2.0
"""A small typed client for Airflow's public REST API (``/api/v2``), for tests and the demo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

import httpx
import tenacity

from tests.system.processes import HomeError

FINISHED_RUN_STATES = frozenset({"success", "failed"})
FINISHED_TASK_STATES = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
LOG_HEAD = ("timestamp", "level", "event")
# On every line, and the same on each: which task it is, and where in the code it was logged.
LOG_NOISE = frozenset(
    {"try_number", "dag_id", "run_id", "map_index", "task_id", "ti_id", "filename", "lineno", "logger", "loc"}
)
PAGE = 100  # rows; Airflow's own maximum


@dataclass(frozen=True)
class DagRun:
    """
    One run of a DAG.

    :ivar data_interval_start: inclusive; None in a run that was triggered without a logical date.
    :ivar data_interval_end: exclusive; None likewise.
    """

    dag_id: str
    run_id: str
    run_type: str
    state: str
    logical_date: datetime | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    start_date: datetime | None
    end_date: datetime | None
    conf: Mapping[str, Any]

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED_RUN_STATES


@dataclass(frozen=True)
class TaskInstance:
    """
    The latest try of a task in a run.

    :ivar id: UUID of this try; a retry gets a new one.
    :ivar state: None before it was scheduled.
    :ivar try_number: 1 for the first try, 0 before it.
    """

    id: str
    task_id: str
    dag_id: str
    run_id: str
    map_index: int
    state: str | None
    try_number: int
    start_date: datetime | None
    end_date: datetime | None

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED_TASK_STATES


@dataclass(frozen=True)
class Backfill:
    """
    A backfill.

    :ivar from_date: first logical date; inclusive.
    :ivar to_date: last logical date; inclusive.
    :ivar completed_at: None while runs of it are left.
    """

    id: int
    dag_id: str
    from_date: datetime
    to_date: datetime
    completed_at: datetime | None


class AirflowApi:
    """
    REST client of one Airflow whose simple auth manager makes everybody an admin.

    Reads are retried on transport errors and 5xx; writes only when no connection came about, so that nothing
    is done twice. What Airflow refuses becomes :class:`HomeError` with Airflow's own words.

    :param url: for example ``http://127.0.0.1:8080``.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        # No proxies from the environment: this never leaves the machine.
        self._client = httpx.Client(base_url=url, timeout=30, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def health(self) -> dict[str, str | None]:
        """Status by component: metadatabase, scheduler, dag_processor, triggerer. Not retried."""
        response = self._client.get("/api/v2/monitor/health", timeout=5)
        response.raise_for_status()
        return {name: part.get("status") for name, part in response.json().items() if part}

    def login(self) -> None:
        """Fetch a token; call it once Airflow is up."""
        response = self._client.get("/auth/token")
        response.raise_for_status()
        self._client.headers["Authorization"] = f"Bearer {response.json()['access_token']}"

    def dags(self) -> dict[str, bool]:
        """Ids of the DAGs that were parsed, and whether each is paused."""
        return {row["dag_id"]: row["is_paused"] for row in self._rows("/dags", "dags")}

    def import_errors(self) -> dict[str, str]:
        """File name and stack trace of the DAG files that could not be imported."""
        return {row["filename"]: row["stack_trace"] for row in self._rows("/importErrors", "import_errors")}

    def create_backfill(
        self,
        dag_id: str,
        from_date: datetime,
        to_date: datetime,
        *,
        reprocess: str = "none",
        max_active_runs: int = 2,
        conf: Mapping[str, Any] | None = None,
        run_backwards: bool = False,
    ) -> Backfill:
        """
        Start Airflow's own backfill of a DAG.

        :param from_date: first logical date; inclusive, aware.
        :param to_date: last logical date; inclusive, aware. Three hourly runs from T end at T + 2 h.
        :param reprocess: ``none``, ``failed`` or ``completed``: which existing runs are run again.
        """
        body = {
            "dag_id": dag_id,
            "from_date": from_date.isoformat(),
            "to_date": to_date.isoformat(),
            "reprocess_behavior": reprocess,
            "max_active_runs": max_active_runs,
            "dag_run_conf": dict(conf or {}),
            "run_backwards": run_backwards,
        }
        return _backfill(self._call("POST", "/backfills", json=body).json())

    def backfill(self, backfill_id: int) -> Backfill:
        """State of a backfill. Airflow marks it completed up to 30 s after its last run has ended."""
        return _backfill(self._call("GET", f"/backfills/{backfill_id}").json())

    def backfills(self, dag_id: str) -> list[Backfill]:
        """All backfills of a DAG."""
        return [_backfill(row) for row in self._rows("/backfills", "backfills", dag_id=dag_id)]

    def trigger(
        self,
        dag_id: str,
        *,
        run_id: str | None = None,
        logical_date: datetime | None = None,
        interval: tuple[datetime, datetime] | None = None,
        conf: Mapping[str, Any] | None = None,
    ) -> DagRun:
        """
        Trigger a run, as the form in the UI does.

        :param logical_date: the timetable gives the run the last whole interval before it, as it does for the
            form in the UI, which sends the present time. None: the run has no data interval at all.
        :param interval: ``[start, end)`` of the run; Airflow ignores it without a logical date, so that
            ``start`` becomes the logical date here when none is given.
        :param conf: values of the form's ``params``, and anything else.
        """
        if interval is not None and logical_date is None:
            logical_date = interval[0]
        body: dict[str, Any] = {
            "logical_date": logical_date.isoformat() if logical_date else None,
            "conf": dict(conf or {}),
        }
        if interval is not None:
            body["data_interval_start"], body["data_interval_end"] = (end.isoformat() for end in interval)
        if run_id is not None:
            body["dag_run_id"] = run_id
        return _run(self._call("POST", f"/dags/{_q(dag_id)}/dagRuns", json=body).json())

    def runs(self, dag_id: str) -> list[DagRun]:
        """All runs of a DAG, in order of their logical date (runs without one come last)."""
        runs = [_run(row) for row in self._rows(f"/dags/{_q(dag_id)}/dagRuns", "dag_runs")]
        never = datetime.max.replace(tzinfo=timezone.utc)
        return sorted(runs, key=lambda run: (run.logical_date or never, run.run_id))

    def run(self, dag_id: str, run_id: str) -> DagRun:
        return _run(self._call("GET", f"/dags/{_q(dag_id)}/dagRuns/{_q(run_id)}").json())

    def task_instances(self, dag_id: str, run_id: str = "~") -> list[TaskInstance]:
        """Task instances of a run, or of all runs of the DAG."""
        path = f"/dags/{_q(dag_id)}/dagRuns/{_q(run_id)}/taskInstances"
        return [_task_instance(row) for row in self._rows(path, "task_instances")]

    def task_instance(self, dag_id: str, run_id: str, task_id: str) -> TaskInstance:
        return _task_instance(self._call("GET", _task_path(dag_id, run_id, task_id)).json())

    def task_log(self, dag_id: str, run_id: str, task_id: str, *, try_number: int = 1) -> str:
        """Text of one try's log so far: a line per event, its fields after it as ``name=value``."""
        path = f"{_task_path(dag_id, run_id, task_id)}/logs/{try_number}"
        body = self._call("GET", path, params={"full_content": True}).json()
        return "\n".join(_log_line(event) for event in body["content"])

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """
        An XCom value; None when there is none.

        A container or another type that Airflow serializes comes as Airflow stores it.
        """
        path = f"{_task_path(dag_id, run_id, task_id)}/xcomEntries/{_q(key)}"
        response = self._call("GET", path, fine=404)
        return None if response.status_code == 404 else response.json()["value"]

    def variables(self) -> dict[str, str]:
        """All Variables with their raw text."""
        return {row["key"]: row["value"] for row in self._rows("/variables", "variables")}

    def add_connection(self, conn_id: str, connection: Mapping[str, Any]) -> None:
        """
        Create a connection that the UI lists; one of that name stays as it is.

        :param connection: Airflow's connection JSON.
        """
        self._call("POST", "/connections", fine=409, json={"connection_id": conn_id, **connection})

    def _rows(self, path: str, name: str, **params: str) -> Iterator[dict[str, Any]]:
        page: dict[str, Any] = {**params, "limit": PAGE, "offset": 0}
        while rows := self._call("GET", path, params=page).json()[name]:
            yield from rows
            page["offset"] += len(rows)

    def _call(self, method: str, path: str, *, fine: int | None = None, **arguments: Any) -> httpx.Response:
        for attempt in tenacity.Retrying(
            stop=tenacity.stop_after_delay(20),
            wait=tenacity.wait_exponential(0.1, max=2),
            retry=tenacity.retry_if_exception_type(_errors_to_retry(method)),
            reraise=True,
        ):
            with attempt:
                response = self._client.request(method, f"/api/v2{path}", **arguments)
                if response.status_code >= 500 and method == "GET":
                    response.raise_for_status()
        if response.is_error and response.status_code != fine:
            raise HomeError(f"{method} {path} answered {response.status_code}: {response.text}")
        return response


def _errors_to_retry(method: str) -> tuple[type[Exception], ...]:
    return (httpx.TransportError, httpx.HTTPStatusError) if method == "GET" else (httpx.ConnectError,)


def _q(part: str) -> str:
    return quote(part, safe="~")


def _task_path(dag_id: str, run_id: str, task_id: str) -> str:
    return f"/dags/{_q(dag_id)}/dagRuns/{_q(run_id)}/taskInstances/{_q(task_id)}"


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


def _run(row: Mapping[str, Any]) -> DagRun:
    return DagRun(
        dag_id=row["dag_id"],
        run_id=row["dag_run_id"],
        run_type=row["run_type"],
        state=row["state"],
        logical_date=_time(row["logical_date"]),
        data_interval_start=_time(row["data_interval_start"]),
        data_interval_end=_time(row["data_interval_end"]),
        start_date=_time(row["start_date"]),
        end_date=_time(row["end_date"]),
        conf=row["conf"] or {},
    )


def _task_instance(row: Mapping[str, Any]) -> TaskInstance:
    return TaskInstance(
        id=row["id"],
        task_id=row["task_id"],
        dag_id=row["dag_id"],
        run_id=row["dag_run_id"],
        map_index=row["map_index"],
        state=row["state"],
        try_number=row["try_number"],
        start_date=_time(row["start_date"]),
        end_date=_time(row["end_date"]),
    )


def _backfill(row: Mapping[str, Any]) -> Backfill:
    return Backfill(
        id=row["id"],
        dag_id=row["dag_id"],
        from_date=datetime.fromisoformat(row["from_date"].replace("Z", "+00:00")),
        to_date=datetime.fromisoformat(row["to_date"].replace("Z", "+00:00")),
        completed_at=_time(row["completed_at"]),
    )


def _log_line(event: str | Mapping[str, Any]) -> str:
    if isinstance(event, str):
        return event
    words = [str(event[name]) for name in LOG_HEAD if event.get(name) is not None]
    words += [f"{name}={value}" for name, value in event.items() if name not in (*LOG_HEAD, *LOG_NOISE)]
    return " ".join(words)
