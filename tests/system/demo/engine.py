# SPDX-License-Identifier: Apache-2.0
"""What the demo asks of the database of its flights; all the rest of it is the same for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

#: An event: its ``time_hint`` in milliseconds since 1970 UTC, and its row as the data set has it.
Event = tuple[int, tuple[Any, ...]]
#: Writes events and their outbox rows, in this order, in one transaction.
Writer = Callable[[Sequence[Event]], None]
#: A statement and its values.
Change = tuple[str, tuple[Any, ...]]
#: Runs statements in one transaction, and commits it or rolls it back.
BoardWriter = Callable[[Sequence[Change], bool], None]


class DemoError(RuntimeError):
    """The demo cannot go on as it was called; the message says why, and what to do."""


class Engine(Protocol):
    """
    A database for the flights. Each writer's process gets a copy.

    :ivar conn_id: of the Airflow connection that the DAGs are told to use.
    """

    conn_id: str

    @property
    def place(self) -> str:
        """Where the feed is, for people."""

    @property
    def removal(self) -> str:
        """How it is removed, for people."""

    @property
    def schema(self) -> pa.Schema:
        """Columns and types that an export of the event table has to have."""

    @property
    def connection(self) -> dict[str, Any]:
        """The Airflow connection, as Airflow's connection JSON."""

    @property
    def description(self) -> dict[str, Any]:
        """What ``open_source`` takes."""

    def made(self) -> AbstractContextManager[None]:
        """
        Make the event table, its empty feed and an empty board anew, and keep them while the block runs.

        :raises DemoError: it cannot be made there.
        """

    def writer(self, shard: int) -> AbstractContextManager[Writer]:
        """Open a writer's own connection."""

    @property
    def board(self) -> str:
        """The table of the departures board, as SQL names it."""

    def board_writer(self) -> AbstractContextManager[BoardWriter]:
        """Open a connection to write the board."""

    def board_rows(self) -> list[tuple[Any, ...]]:
        """Read the whole board, in any order."""
