# SPDX-License-Identifier: Apache-2.0
"""A capture with programs that change its tables: what the tests of captures begin with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from airflow_changefeed.core.capture import CaptureInfo, CaptureSpec, TableCapture
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.sources.base import ULID_COLUMN
from tests.integration.contract.engines import Changer, Engine, Table
from tests.integration.contract.oracles import Change

#: A statement, or a statement and its values.
Statement = str | tuple[Any, ...]
#: Type, old and new row of an event.
Shown = tuple[str, Mapping[str, Any] | None, Mapping[str, Any] | None]
#: What most tests capture; its name is right for all of them.
AUTHOR = Table("shop.author", keys=(("id", "integer"),), columns=(("name", "text"),))
CAPTURE = "shop.author_changes"


def row(id: int, name: str | None) -> dict[str, Any]:
    """Return a row of :data:`AUTHOR`."""
    return {"id": id, "name": name}


@dataclass
class CaptureBench:
    """
    A database with captures.

    :param source: its source.
    :param name: of the capture that was enabled last.
    :param seen: the last event of each capture and shard that :meth:`new_events` has given.
    """

    engine: Engine
    source: Any
    name: str = ""
    seen: dict[tuple[str, Shard], Ulid] = field(default_factory=dict)

    def enable(self, *tables: TableCapture | str, snapshot: bool = False, **options: Any) -> CaptureInfo:
        """Enable a capture; what the engine cannot guard stays unguarded."""
        given = tuple(TableCapture(one) if isinstance(one, str) else one for one in tables)
        spec = CaptureSpec(given, **{"guard_schema": self.engine.guards_schema, **options})
        info = self.source.enable_capture(spec, record_rows=snapshot)
        self.name = info.name
        return info

    @contextmanager
    def changer(self, lock_timeout: float = 20.0) -> Iterator[Changer]:
        """Connect a program; what it leaves open is rolled back."""
        with closing(self.engine.changer(lock_timeout)) as changer:
            yield changer

    def run(self, *statements: Statement, variables: Mapping[str, str] | None = None) -> None:
        """Commit statements in one transaction."""
        with self.changer() as changer:
            changer.begin(variables)
            for statement in statements:
                changer.execute(*((statement,) if isinstance(statement, str) else statement))
            changer.commit()

    def events(self, shard: Shard = 0, *, after: Ulid = Ulid.MIN, name: str = "") -> list[Change]:
        """Order what is committed, and return a shard's events."""
        self.source.drain(name or self.name)
        return self.fed(shard, after=after, name=name)

    def fed(self, shard: Shard = 0, *, after: Ulid = Ulid.MIN, name: str = "") -> list[Change]:
        """Return a shard's events that are ordered already."""
        batches = self.source.stream(name or self.name, shard, UlidRange(after, Ulid.MAX))
        return [change_of(event, shard) for batch in batches for event in batch.to_pylist()]

    def new_events(self, shard: Shard = 0, *, name: str = "") -> list[Shown]:
        """Order what is committed, and return what this has not returned yet."""
        place = (name or self.name, shard)
        events = self.events(shard, after=self.seen.get(place, Ulid.MIN), name=name)
        if events:
            self.seen[place] = Ulid.parse_text(events[-1].ulid)
        return shown(events)

    def changes_of(self, *statements: Statement, **options: Any) -> list[Shown]:
        """Commit statements in one transaction, and return the events that they gave."""
        self.new_events()
        self.run(*statements, **options)
        return self.new_events()


def change_of(event: Mapping[str, Any], shard: Shard) -> Change:
    """Return an event as it stands in a stream or file, for oracles."""
    session = event["session_variables"]
    return Change(
        ulid=event[ULID_COLUMN],
        shard=shard,
        table=event["name"],
        type=event["type"],
        old=event["old"],
        new=event["new"],
        tid=event["tid"],
        is_snapshot=event["is_snapshot"],
        sequence=event.get("sequence"),
        epoch=event["epoch"],
        captured_at=event["captured_at"],
        variables=None if session is None else json.loads(session),
        trace=event["trace_context"],
    )


def shown(events: Sequence[Change]) -> list[Shown]:
    """Return what the documented cases say of events."""
    return [(event.type, event.old, event.new) for event in events]


def unordered(events: Sequence[Shown]) -> list[Shown]:
    """Return events of one statement in an order that does not depend on the database's."""
    return sorted(events, key=lambda event: repr((event[2] or event[1], event)))


def set_up_author(engine: Engine, *rows: tuple[int, str | None], **options: Any) -> CaptureBench:
    """Capture a table that had rows before."""
    engine.create_table(AUTHOR)
    bench = CaptureBench(engine, engine.source())
    if rows:
        bench.run(*(('insert into "shop.author" (id, name) values (?, ?)', *one) for one in rows))
    table = options.pop("table", TableCapture(AUTHOR.name))
    bench.enable(table, **options)
    return bench
