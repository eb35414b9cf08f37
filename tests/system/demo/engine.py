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
        Make the event table and its empty feed anew, and keep what is made while the block runs.

        :raises DemoError: it cannot be made there.
        """

    def writer(self, shard: int) -> AbstractContextManager[Writer]:
        """Open a writer's own connection."""
