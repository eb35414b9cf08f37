# SPDX-License-Identifier: Apache-2.0
"""What handlers raise: it is counted and parked, in words that can be stored, or it ends the process."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from airflow_changefeed.consumers.run import Backoff
from airflow_changefeed.core.consumer import MAX_REASON, OnPoison, Outcome
from airflow_changefeed.exceptions import PoisonError
from tests.unit.consumers.feeds import CAPTURE, NAME, Shop
from tests.unit.consumers.runs import Sayer, log_of, run


class Mute(Exception):
    """An error whose message cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Silent(Mute):
    """An error of which nothing can be made."""

    def __repr__(self) -> str:
        raise RecursionError


class Wordless(Exception):
    """An error whose message is none."""

    def __str__(self) -> str:
        return None  # type: ignore[return-value] # noqa: PLE0307 - as careless classes do


#: As Rust libraries raise it, which is no Exception.
Panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
HALF = "caf\udce9.txt"
FAILURES = [
    (FileNotFoundError(f"no file {HALF}"), r"FileNotFoundError: no file caf\udce9.txt"),
    (ValueError("\ud83d\ude00"), r"ValueError: \ud83d\ude00"),
    (ValueError("a\0b"), r"ValueError: a\x00b"),
    (Mute(), "Mute: its message cannot be shown: __str__ or __repr__ raised RuntimeError"),
    (Silent(), "Silent: its message cannot be shown: __str__ or __repr__ raised RuntimeError"),
    (Wordless(), "Wordless: its message cannot be shown: __str__ or __repr__ raised TypeError"),
    (ValueError(), "ValueError: ValueError()"),
    (ValueError("\U0001f600" * MAX_REASON), "ValueError: " + "\U0001f600" * ((MAX_REASON - 12) // 2)),
    (ValueError(lambda: None), "ValueError: <function"),
    (asyncio.CancelledError("gone"), "CancelledError: gone"),
    (Panic("index out of bounds"), "PanicException: index out of bounds"),
]


class Raiser(Sayer):
    """A handler that raises an error at the text ``bad``."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def __call__(self, given: Any, connection: Any) -> None:
        super().__call__(given, connection)
        if "bad" in self.calls[-1]:
            raise self.error


@pytest.mark.parametrize(("error", "kept"), FAILURES, ids=[kept[:30] for _, kept in FAILURES])
@pytest.mark.parametrize("on_poison", list(OnPoison))
def test_every_error_of_a_handler_is_counted(
    shop: Shop, error: BaseException, kept: str, on_poison: OnPoison
) -> None:
    """And the event is parked, or the run stops at it, after as many attempts as the settings say."""
    shop.create(max_attempts=2, on_poison=on_poison)
    shop.insert("a", "bad", "c")
    if on_poison is OnPoison.STOP:
        with pytest.raises(PoisonError) as caught:
            run(shop, Raiser(error), backoff=Backoff())
        assert kept in caught.value.message
        caught.value.message.encode()
    else:
        done = run(shop, Raiser(error), backoff=Backoff())
        assert (done.events, done.parked, shop.said()) == (2, 1, ["a", "c"])
        (letter,) = shop.source.dead_letters(CAPTURE)
        assert letter.reason.startswith(kept)
    failed = [one.attempt for one in shop.source.invocations(CAPTURE, NAME) if one.attempt.error]
    assert [one.number for one in failed] == [2, 1]
    assert all((one.error or "").startswith(kept) for one in failed)


def test_what_an_event_has_in_an_error_does_not_lead_the_terminal(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in the log, with its traceback, nor in the error that ends the run."""
    shop.create(max_attempts=1)
    shop.insert("bad")
    with caplog.at_level(logging.WARNING), pytest.raises(PoisonError) as caught:
        run(shop, Raiser(ValueError("no airport \x1b[2J\u202e")))
    texts = [record.getMessage() for record in caplog.records] + [caught.value.message]
    assert sum(r"no airport \u001b[2J\u202e" in text for text in texts) >= 2
    assert not {"\x1b", "\u202e"} & {*"".join(texts)}


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(0), type("TaskTimeout", (BaseException,), {})()]
)
def test_what_ends_a_process_is_no_failure_of_the_event(
    shop: Shop, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is committed or counted, the log names the event, and the next run begins with it."""
    shop.create(max_attempts=1, on_poison=OnPoison.PARK)
    shop.insert("a", "bad")
    with caplog.at_level(logging.WARNING), pytest.raises(type(error)):
        run(shop, Raiser(error))
    assert f"the run ends at event {shop.source.shards(CAPTURE)[0].head}" in caplog.text
    assert type(error).__name__ in caplog.text
    assert shop.said() == ["a"]
    assert log_of(shop) == [(Outcome.CONSUMED, 1, 1)]
    assert run(shop, Sayer()).events == 1
