# SPDX-License-Identifier: Apache-2.0
"""From when a snapshot is exact: whatever hides a committed event from a drain, it lies below that time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import LockTimeoutError
from airflow_changefeed.lake import take_snapshot as module
from airflow_changefeed.lake.take_snapshot import settle

MS = timedelta(milliseconds=1)


@dataclass
class Row:
    """A committed row of the outbox; hidden from scans until a time."""

    number: int
    hint: datetime
    hidden_until: datetime


@dataclass
class Outbox:
    """A feed with one shard, whose clock is a variable."""

    clock: datetime = datetime(2013, 1, 1, tzinfo=timezone.utc)
    high_water: datetime = datetime(2013, 1, 1, tzinfo=timezone.utc)
    rows: list[Row] = field(default_factory=list)
    given: dict[int, datetime] = field(default_factory=dict)
    number: int = 0
    sealing: Callable[[], object] = lambda: None
    capabilities: Any = field(default_factory=lambda: SimpleNamespace(parallel_writers=True))

    def commit(self, *, hidden: timedelta = 0 * MS, ahead: timedelta = 0 * MS) -> int:
        """Commit an event that scans pass for a while, and whose hint may be ahead of the clock."""
        self.number += 1
        self.rows.append(Row(self.number, self.clock + ahead, self.clock + hidden))
        return self.number

    def order_bound(self, feed: str) -> int:
        self.number += 1
        return self.number

    def first_waiting(self, feed: str) -> int | None:
        return min((row.number for row in self._visible()), default=None)

    def seal(self, feed: str, until: datetime) -> None:
        self.sealing()
        for row in self._visible():
            self.rows.remove(row)
            self.high_water = max(self.high_water, row.hint)
            self.given[row.number] = self.high_water
        self.high_water = max(self.high_water, until)
        self.clock += MS

    def shards(self, feed: str) -> list[Any]:
        return [SimpleNamespace(high_water=self.high_water, head=Ulid.floor(self.high_water))]

    def now(self) -> datetime:
        return self.clock

    def sleep(self, seconds: float) -> None:
        self.clock += timedelta(seconds=seconds)

    def _visible(self) -> list[Row]:
        return [row for row in self.rows if row.hidden_until <= self.clock]


def settled(outbox: Outbox) -> datetime:
    """Settle a feed that nothing but the test changes."""
    source: Any = outbox
    return settle(source, "shop", outbox.clock - MS, outbox.sleep)


@pytest.mark.parametrize("hidden", [0, 5, 240, 400, 5_000])
@pytest.mark.parametrize("ahead", [0, 3, 2_000])
def test_what_is_committed_lies_below_it(hidden: int, ahead: int) -> None:
    """Also what a drain has passed, and what was hinted ahead of the clock."""
    outbox = Outbox()
    plain, odd = outbox.commit(), outbox.commit(hidden=hidden * MS, ahead=ahead * MS)
    until = settled(outbox)
    assert outbox.given[plain] < until
    # One that stays hidden longer than a commit takes to give back its locks was not committed then.
    assert hidden > 250 or outbox.given[odd] < until


def test_what_comes_into_sight_while_it_seals_is_waited_for() -> None:
    """As when a drain that held it has died."""
    outbox = Outbox()
    held = outbox.commit(hidden=timedelta(days=1))
    seals = []

    def sealing() -> None:
        seals.append(outbox.clock)
        if len(seals) == 2:
            outbox.sealing = lambda: None

    def shows() -> None:
        sealing()
        outbox.rows[0].hidden_until = outbox.clock + MS

    outbox.sealing = shows
    until = settled(outbox)
    assert outbox.given[held] < until


def test_events_that_others_write_on_are_not_waited_for() -> None:
    """Numbers beyond the bound may wait for ever."""
    outbox = Outbox()
    outbox.commit()

    def busy() -> None:
        outbox.commit(hidden=MS)

    outbox.sealing = busy
    assert settled(outbox) - datetime(2013, 1, 1, tzinfo=timezone.utc) < timedelta(seconds=5)


def test_what_never_goes_away_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named, after some minutes, and not a loop for ever."""
    monkeypatch.setattr(module, "_PATIENCE", 0.0)
    outbox = Outbox()
    outbox.commit()
    monkeypatch.setattr(Outbox, "seal", lambda self, feed, until: None)
    with pytest.raises(LockTimeoutError, match="'shop': events that were committed wait in the outbox"):
        settled(outbox)
