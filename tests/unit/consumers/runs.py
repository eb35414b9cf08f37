# SPDX-License-Identifier: Apache-2.0
"""Runs of a consumer that write what they were given into a table of the shop."""

from __future__ import annotations

import sqlite3
from typing import Any

from airflow_changefeed.consumers.run import Run, run_consumer
from airflow_changefeed.core.consumer import Outcome
from tests.unit.consumers.feeds import CAPTURE, NAME, Shop

SAY = "insert into audit values (?, ?)"


class Sayer:
    """A handler that writes each event's text, and fails as it is told."""

    def __init__(self, **failures: int) -> None:
        self.failures = failures
        self.calls: list[Any] = []

    def __call__(self, given: Any, connection: sqlite3.Connection) -> None:
        events = given if isinstance(given, list) else [given]
        texts = [event.new["data"] for event in events]
        self.calls.append(texts if isinstance(given, list) else texts[0])
        for event, text in zip(events, texts, strict=True):
            connection.execute(SAY, (str(event.id), text))
            if self.failures.get(text, 0):
                self.failures[text] -= 1
                raise ValueError(f"cannot do {text}")


def run(shop: Shop, handler: Any, **options: Any) -> Run:
    """Let a handler go through the capture's events, to the head."""
    given = {"at_head": True, "register_timeout": 0.0, "pace": shop.pace(), **options}
    return run_consumer(shop.source, NAME, CAPTURE, handler, **given)


def log_of(shop: Shop) -> list[tuple[Outcome, int, int]]:
    """Return outcome, number and events of each attempt, the first one first."""
    entries = reversed(shop.source.invocations(CAPTURE, NAME))
    return [(one.attempt.outcome, one.attempt.number, one.attempt.events) for one in entries]
