# SPDX-License-Identifier: Apache-2.0
"""A feed's database as a test scripts it: at a certain poll it loses its connection or gets new events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from airflow_changefeed.sources import SOURCES
from airflow_changefeed.sources.sqlite import SqliteFeedSource


class ScriptedSource(SqliteFeedSource):
    """
    A SQLite file whose polls are played after a script.

    :cvar script: what happens before each of the next polls; afterwards nothing does.
    :cvar opened: how often a source was opened.
    :cvar closed: set when one was closed.
    """

    script: ClassVar[Iterator[Callable[[], object]]] = iter(())
    opened: ClassVar[int] = 0
    closed: ClassVar[threading.Event] = threading.Event()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        type(self).opened += 1

    def poll_many(self, *args: Any, **kwargs: Any) -> Any:
        """Play the next line of the script, then do what was asked."""
        next(type(self).script, int)()
        return super().poll_many(*args, **kwargs)

    def close(self) -> None:
        """Say that it was closed."""
        super().close()
        type(self).closed.set()


def play(monkeypatch: pytest.MonkeyPatch, *script: Callable[[], object]) -> type[ScriptedSource]:
    """Let connections of type sqlite lead to a scripted source."""
    monkeypatch.setitem(SOURCES, "sqlite", f"{__name__}.{ScriptedSource.__name__}")
    ScriptedSource.script, ScriptedSource.opened = iter(script), 0
    ScriptedSource.closed = threading.Event()
    return ScriptedSource


def raiser(error: Exception) -> Callable[[], object]:
    """Return a line of a script that fails."""

    def fail() -> None:
        raise error

    return fail
