# SPDX-License-Identifier: Apache-2.0
"""A shop that people have to look after: a gap, mails that could not be sent, and a lake with its stock."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from airflow_changefeed.consumers.run import Backoff, run_consumer
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.capture import CaptureSpec, KeyChange, TableCapture
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec, OnPoison
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import CaptureGapError
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedSource
from tests.browser.exports import export
from tests.clocks import after_now
from tests.integration.contract.engines import Engine, Table
from tests.unit.lake.lake import merge_here, take

MAILER = "mailer"
#: Seconds until a snapshot that makes no progress expires.
_LONG = 86_400.0


@dataclass(frozen=True)
class Shop:
    """
    Two captured tables.

    :param schema: of its tables; shops of different databases have different ones.
    :param folder: of its export and its lake.
    """

    engine: Engine
    schema: str
    folder: Path

    @property
    def orders(self) -> str:
        """A table that a change has passed unseen, and whose events a consumer could not handle."""
        return f"{self.schema}.Order"

    @property
    def stock(self) -> str:
        """A table that the lake has, too."""
        return f"{self.schema}.Stock"

    @property
    def capture(self) -> str:
        """The capture of the orders."""
        return f"{self.orders}_changes"

    @property
    def stock_capture(self) -> str:
        """The capture of the stock."""
        return f"{self.stock}_changes"

    @property
    def export(self) -> str:
        """Where the changes of the stock are exported to."""
        return str(self.folder / f"{self.schema}-export")

    @property
    def lake(self) -> str:
        """Where its snapshots and its current table are."""
        return str(self.folder / f"{self.schema}-lake")

    @cached_property
    def source(self) -> FeedSource:
        """The captures."""
        return self.engine.source()

    def change(self, *statements: str) -> None:
        """Run statements as a program does."""
        with closing(self.engine.changer()) as changer:
            for statement in statements:
                changer.execute(statement)

    def make(self) -> None:
        """Make all of it."""
        for name in (self.orders, self.stock):
            self.engine.create_table(Table(name, keys=(("id", "integer"),), columns=(("status", "text"),)))
        self._fill_lake()
        self._park_mails()
        self._pass_unseen()

    def _enable(self, table: str) -> None:
        spec = CaptureSpec(
            (TableCapture(table),),
            key_change=KeyChange.DELETE_INSERT,
            guard_schema=self.engine.guards_schema,
            guard_table=False,
        )
        self.source.enable_capture(spec)

    def _fill_lake(self) -> None:
        """Take a snapshot, merge what changed since, and leave another snapshot that has just begun."""
        source, capture = self.source, self.stock_capture
        self.change(*(f"insert into \"{self.stock}\" values ({number}, 'there')" for number in range(40)))
        self._enable(self.stock)
        start = source.now()
        take(source, capture, self.lake)
        self.change(f"update \"{self.stock}\" set status = 'sold' where id < 10")
        end = after_now(source)
        store = ExportStore(self.export, capture)
        export(source, store, "lake", [[Window(start, end)]], by=f"{self.schema}_current/first")
        paths = {"path": self.export, "output": self.lake}
        merge_here(source, capture, self.stock, paths, end, run=f"{self.schema}_current/first/merge/1")
        source.begin_snapshot(
            capture, self.stock, token="0", path="/backup", begin=start, by="tests/run", seconds=_LONG
        )

    def _park_mails(self) -> None:
        """Let a consumer fail at the first two orders."""
        self._enable(self.orders)
        self.change(*(f"insert into \"{self.orders}\" values ({number}, 'paid')" for number in range(5)))
        self.source.drain(self.capture)
        spec = ConsumerSpec(MAILER, self.capture, max_attempts=1, on_poison=OnPoison.PARK)
        create_consumer(self.source, spec, Beginning.EARLIEST, by="ann")
        backoff = Backoff(first=0, longest=0)
        run_consumer(self.source, MAILER, self.capture, _refuse, max_events=2, backoff=backoff)

    def _pass_unseen(self) -> None:
        self.change(
            *self.engine.unseen(self.orders)[0].statements,
            f"insert into \"{self.orders}\" values (99, 'lost')",
        )
        with suppress(CaptureGapError):
            self.source.seal(self.capture, self.source.now())
        # SQL Server resolves no gap while its cause persists.
        self._enable(self.orders)


def _refuse(event: object, connection: object) -> None:
    raise ValueError("the mail server knows no such address")
