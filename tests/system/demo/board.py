# SPDX-License-Identifier: Apache-2.0
"""
The departures board: flights that are scheduled, depart and arrive while the demo runs.

Its writer knows nothing of feeds. Triggers record what it changes, now, in its own transactions.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from itertools import count, islice
from typing import Any

from airflow_changefeed.core.capture import CaptureSpec, KeyChange, TableCapture
from airflow_changefeed.sources import open_source
from tests.system.demo.engine import Change, Engine
from tests.system.demo.flights import BOARD, BOARD_COLUMNS, data_set

#: As ``dags/changefeed_capture.py`` has it: enabling it there again changes nothing.
SPEC = CaptureSpec(
    tables=(TableCapture(BOARD, shard="FlightID % 2"),),
    key_change=KeyChange.DELETE_INSERT,
    with_sequence=True,
    guard_schema=False,
)
CAPTURE = SPEC.full_name
#: Flights that one transaction schedules.
_SCHEDULED = 5
#: Added to the number of a flight that is taken off and put on again: its row gets another key.
_RENUMBERED = 1_000_001
#: Every so many transactions something is renumbered, or rolled back.
_EVERY = 7
#: Between two transactions.
PAUSE_SECONDS = 0.25
#: Transactions that were made before anybody thought of capturing the board.
_BEFORE = 40


def day_at_the_airport(board: str) -> Iterator[tuple[list[Change], Counter[str], bool]]:
    """
    Return transactions: their statements, the changes that these make, and whether they are committed.

    A flight is put on the board, departs two transactions later and arrives two after that; one that the data
    set knows no departure of is cancelled instead, and goes from the board.

    :param board: the table, as the engine's SQL names it.
    """
    frame = data_set()[list(BOARD_COLUMNS)]
    flights = frame.astype(object).where(frame.notna(), None).itertuples(index=False, name=None)
    marks = ", ".join("?" * 6)
    names = ", ".join(BOARD_COLUMNS[:6])
    waiting: list[list[tuple[Any, ...]]] = [[], []]
    flying: list[list[tuple[Any, ...]]] = [[], []]
    for number in count(1):
        scheduled = list(islice(flights, _SCHEDULED))
        leaving, landing = waiting.pop(0), flying.pop(0)
        cancelled = [flight for flight in leaving if flight[6] is None or flight[7] is None]
        departed = [flight for flight in leaving if flight not in cancelled]
        changes: list[Change] = [
            (f"insert into {board} ({names}) values ({marks})", flight[:6]) for flight in scheduled
        ]
        changes += [(f"update {board} set dep_time = ? where FlightID = ?", (f[6], f[0])) for f in departed]
        changes += [(f"update {board} set arr_time = ? where FlightID = ?", (f[7], f[0])) for f in landing]
        changes += [(f"delete from {board} where FlightID = ?", (f[0],)) for f in cancelled]
        made = Counter(add=len(scheduled), upd=len(departed) + len(landing), **{"del": len(cancelled)})
        if number % _EVERY == 0 and landing:
            key = landing[0][0]
            changes.append((f"update {board} set FlightID = ? where FlightID = ?", (key + _RENUMBERED, key)))
            made += Counter({"add": 1, "del": 1})
        yield changes, made, True
        if number % _EVERY == 1:
            yield [(f"delete from {board}", ())], Counter(), False
        waiting.append(scheduled)
        flying.append(departed)


class Board:
    """
    Somebody who writes the board until he is told to stop.

    :ivar begun: when the capture was enabled, by the database's clock.
    :ivar before: rows that the board had then.
    :ivar made: committed changes, by the type of the event that each has to become.
    :ivar transactions: committed.
    :ivar rolled_back: transactions that were.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.begun: datetime
        self.before = 0
        self.made: Counter[str] = Counter()
        self.transactions = 0
        self.rolled_back = 0
        self._day = day_at_the_airport(engine.board)
        self._failure: BaseException | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="board", daemon=True)

    def enable(self) -> None:
        """Have the triggers made, when the board has been written for a while."""
        self.write(_BEFORE)
        self.before = len(self.engine.board_rows())
        self.made, self.transactions, self.rolled_back = Counter(), 0, 0
        with closing(open_source(self.engine.description)) as source:
            self.begun = source.now()
            source.enable_capture(SPEC)

    def start(self) -> None:
        """Begin to write, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """
        Stop after the transaction that is being written.

        :raises BaseException: what made the writer fail.
        """
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._failure is not None:
            raise self._failure

    def write(self, transactions: int, pause: Callable[[], object] = lambda: None) -> None:
        """Write so many transactions; more of them, after a pause each, until :meth:`stop`."""
        with self.engine.board_writer() as write:
            for changes, made, is_committed in islice(self._day, transactions):
                write(changes, is_committed)
                self.made += made
                self.transactions += is_committed
                self.rolled_back += not is_committed
                pause()
                if self._is_over.is_set():
                    return

    def _work(self) -> None:
        try:
            self.write(len(data_set()) // _SCHEDULED, lambda: self._is_over.wait(PAUSE_SECONDS))
        except BaseException as failure:
            self._failure = failure
