# SPDX-License-Identifier: Apache-2.0
"""The connections, feeds, consumers and outputs that tasks use, read from serialized DAGs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from airflow.configuration import conf
from airflow.models.dag import DagModel
from airflow.models.dag_version import DagVersion
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from sqlalchemy import func, select
from sqlalchemy.sql import Select

from airflow_changefeed.connections.connection import without_secrets
from airflow_changefeed.core.feed import Shard, parse_shards
from airflow_changefeed.core.values import Reader, duration
from airflow_changefeed.tasks.arguments import is_template

#: Airflow option with connections that the page shows besides those that DAGs use.
SECTION, OPTION = "changefeed", "page_connections"
_CONNECTION = "changefeed_conn_id"
_NAMES = ("feed", "consumer", "path", "unit", "shards", "output_path", "states_path", "table", "max_age")


@dataclass(frozen=True)
class Use:
    """
    A task that uses a connection of feeds.

    :param kind: name of the operator's class.
    :param feed, consumer, path: None if the task has none, or a template.
    :param unit: length of an export unit; None if it is the run's interval.
    :param shards: None for all.
    :param output_path: root of snapshots, states and current tables; None as for ``path``.
    :param states_path: another root of snapshots and states.
    :param table: captured table; None for all, or a template.
    :param is_batch: whether it exports from its cursor on, instead of windows.
    :param max_age: how old a frontier may be, of a task that watches a feed, a pattern of feeds, or all.
    :param templates: names of the arguments that are templates, known only in a run.
    """

    conn_id: str
    dag_id: str
    task_id: str
    kind: str
    feed: str | None = None
    consumer: str | None = None
    path: str | None = None
    path_conn_id: str | None = None
    unit: timedelta | None = None
    shards: tuple[Shard, ...] | None = None
    output_path: str | None = None
    states_path: str | None = None
    table: str | None = None
    catalog_conn_id: str | None = None
    is_batch: bool = False
    max_age: timedelta | None = None
    templates: tuple[str, ...] = ()

    @property
    def has_windows(self) -> bool:
        """Whether the page can show which windows of its output are complete."""
        return not self.is_batch and None not in (self.feed, self.consumer, self.path)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values, without secrets in addresses."""
        return {
            "conn_id": self.conn_id,
            "dag_id": self.dag_id,
            "task_id": self.task_id,
            "kind": self.kind,
            "feed": self.feed,
            "consumer": self.consumer,
            "path": self.path and without_secrets(self.path),
            "unit_seconds": self.unit and self.unit.total_seconds(),
            "has_windows": self.has_windows,
            "templates": list(self.templates),
        }


#: DAGs to read at a time.
_READ = 100

# By DAG: its hash and its uses. A DAG is read again when its hash changes.
_KNOWN: dict[str, tuple[str, tuple[Use, ...]]] = {}


def find_uses(dag_ids: Collection[str]) -> list[Use]:
    """
    Return the tasks of some DAGs that use a connection of feeds, or that read what one of them exports.

    Each DAG is read once; later calls only query which of them changed.
    """
    with create_session() as session:
        newest = {dag_id: (row_id, dag_hash) for dag_id, row_id, dag_hash in session.execute(_newest())}
        changed = {
            dag_id: row_id
            for dag_id, (row_id, dag_hash) in newest.items()
            if _KNOWN.get(dag_id, ("", ()))[0] != dag_hash
        }
        ids = list(changed.values())
        for first in range(0, len(ids), _READ):
            rows = select(SerializedDagModel).where(SerializedDagModel.id.in_(ids[first : first + _READ]))
            for row in session.scalars(rows):
                _KNOWN[row.dag_id] = (newest[row.dag_id][1], tuple(uses_of(row.dag_id, row.data or {})))
            # DAGs are large, and an installation may have thousands.
            session.expunge_all()
    for gone in _KNOWN.keys() - newest.keys():
        _KNOWN.pop(gone, None)
    # Another request may have removed a deleted DAG in the meantime.
    visible = sorted(newest.keys() & set(dag_ids))
    return list(with_connections([use for dag_id in visible for use in _KNOWN.get(dag_id, ("", ()))[1]]))


def version_of(dag_id: str) -> str:
    """Return a text that changes whenever a DAG does; empty for one that was never read."""
    return _KNOWN.get(dag_id, ("", ()))[0]


def with_connections(uses: Sequence[Use]) -> Iterator[Use]:
    """
    Yield tasks with the connection that they use.

    Folds and merges name none, because they read an export: they get that of the tasks that export to it.
    """
    exports: dict[str, set[tuple[str | None, str]]] = {}
    for use in uses:
        if use.conn_id and use.path and (use.consumer or "consumer" in use.templates):
            exports.setdefault(use.path.rstrip("/"), set()).add((use.feed, use.conn_id))
    for use in uses:
        if use.conn_id:
            yield use
            continue
        found = exports.get((use.path or "").rstrip("/"), ())
        # Exports of many feeds, and those of which the feed is a template, name none.
        for conn_id in sorted({conn_id for feed, conn_id in found if feed in (None, use.feed)}):
            yield replace(use, conn_id=conn_id)


def _newest() -> Select[str, UUID, str]:
    """Return a query of the newest version of each DAG; there may be hundreds of versions."""
    last = (
        select(DagVersion.dag_id, func.max(DagVersion.version_number).label("number"))
        .join(SerializedDagModel, SerializedDagModel.dag_version_id == DagVersion.id)
        .group_by(DagVersion.dag_id)
        .subquery()
    )
    return (
        select(SerializedDagModel.dag_id, SerializedDagModel.id, SerializedDagModel.dag_hash)
        .join(DagVersion, SerializedDagModel.dag_version_id == DagVersion.id)
        .join(last, (DagVersion.dag_id == last.c.dag_id) & (DagVersion.version_number == last.c.number))
        .join(DagModel, DagModel.dag_id == SerializedDagModel.dag_id)
        .where(DagModel.is_stale.is_(False))
    )


def configured() -> list[str]:
    """Return the connections in Airflow's configuration."""
    text = conf.get(SECTION, OPTION, fallback="") or ""
    return [name for name in (part.strip() for part in text.split(",")) if name]


def uses_of(dag_id: str, data: Mapping[str, Any]) -> Iterator[Use]:
    """
    Yield the uses in a serialized DAG; skips what is not in the expected form.

    Tasks that read only an export have no connection.

    :param data: as Airflow stores it.
    """
    for entry in data.get("dag", {}).get("tasks", []):
        task = entry.get("__var", entry)
        given = {**_plain(task.get("partial_kwargs")), **task}
        conn_id = _value(given.get(_CONNECTION))
        reads_export = all(_value(given.get(name)) for name in ("feed", "path", "output_path"))
        if isinstance(conn_id, str) or reads_export:
            yield _use(dag_id, str(task.get("task_id")), conn_id or "", given)


def _use(dag_id: str, task_id: str, conn_id: str, given: Mapping[str, Any]) -> Use:
    values = {name: _value(given.get(name)) for name in _NAMES}
    templates = tuple(name for name, value in values.items() if is_template(value))
    known = {name: None if name in templates else value for name, value in values.items()}
    # Of a list of feeds, or of names that are known only in a run, the page does not know who is watched.
    is_watch = str(given.get("task_type") or given.get("_task_type")).startswith("ChangefeedFreshness")
    is_named = isinstance(values["feed"], (str, type(None))) and not {"feed", "consumer"} & set(templates)
    return Use(
        conn_id,
        dag_id,
        task_id,
        str(given.get("task_type") or given.get("_task_type") or ""),
        feed=_text(known["feed"]),
        consumer=_text(known["consumer"]),
        path=_text(known["path"]),
        path_conn_id=_text(_value(given.get("path_conn_id"))),
        unit=_known(duration(), known["unit"]),
        shards=_known(parse_shards, known["shards"]),
        output_path=_text(known["output_path"]),
        states_path=_text(known["states_path"]),
        table=_text(known["table"]),
        catalog_conn_id=_text(_value(given.get("catalog_conn_id"))),
        is_batch=_value(given.get("mode")) == "batch",
        max_age=_known(duration(), known["max_age"]) if is_watch and is_named else None,
        templates=templates,
    )


def _plain(encoded: Any) -> dict[str, Any]:
    value = _value(encoded)
    return value if isinstance(value, dict) else {}


def _value(encoded: Any) -> Any:
    """Return the value of Airflow's wrapper with its type."""
    return encoded["__var"] if isinstance(encoded, dict) and "__var" in encoded else encoded


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _known(reader: Reader, value: Any) -> Any:
    """Read a value; None where it is a template, or means nothing."""
    try:
        return reader(value)
    except ValueError:
        return None
