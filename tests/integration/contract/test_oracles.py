# SPDX-License-Identifier: Apache-2.0
"""The oracles themselves: a good history passes all, and each broken promise is found by its oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.integration.contract.oracles import (
    ORACLES,
    History,
    Reading,
    SealRecord,
    Transaction,
    digest,
    judge,
)


def _ulid(number: int) -> str:
    return f"{number:026}"


def _content(*keys: int) -> tuple[tuple[str, tuple[int]], ...]:
    return tuple((_ulid(10 + place), (key,)) for place, key in enumerate(keys))


def _transaction(name: str, begun: int, acknowledged: int | None, *keys: int, **options: Any) -> Transaction:
    return Transaction(name, begun, acknowledged, tuple((0, (key,)) for key in keys), **options)


def _seal(number: int, *below: int) -> SealRecord:
    ulids = [_ulid(place) for place in below]
    return SealRecord(0, _ulid(number), len(ulids), digest(ulids))


A = _transaction("A", 1, 2, 1, 2)
B = _transaction("B", 3, 5, 3)
C = _transaction("C", 4, 6, 4)  # beside B
KILLED = _transaction("killed in its commit", 7, None, 5)
LOST = _transaction("killed before its commit was done", 8, None, 6)
ROLLED_BACK = _transaction("rolled back", 1, None, 9, is_rolled_back=True)
FEED = _content(1, 2, 4, 3, 5)
GOOD = History(
    transactions=(A, B, C, KILLED, LOST, ROLLED_BACK),
    rows=frozenset((key,) for key in (1, 2, 3, 4, 5)),
    feed={0: FEED, 1: ()},
    readings=(Reading("one", 0, FEED), Reading("one", 1, ())),
    seals=(_seal(12, 10, 11), _seal(5), _seal(99, 10, 11, 12, 13, 14)),
)


def _with_feed(*keys: int, **changes: Any) -> History:
    content = _content(*keys)
    return replace(
        GOOD, feed={0: content, 1: ()}, readings=(Reading("one", 0, content),), seals=(), **changes
    )


def test_a_good_history_has_no_complaints() -> None:
    """Parallel transactions in either order, kills and rollbacks are all as promised."""
    assert judge(GOOD) == []
    assert judge(_with_feed(1, 2, 3, 4, 5)) == []


BROKEN: dict[str, tuple[str, History]] = {
    "a process failed": ("nobody_failed", replace(GOOD, failures=("reader: exit 1",))),
    "half a transaction": ("transactions_are_whole", replace(GOOD, rows=GOOD.rows - {(2,)})),
    "a rolled back row": ("transactions_are_whole", replace(GOOD, rows=GOOD.rows | {(9,)})),
    "a row of nobody": ("transactions_are_whole", replace(GOOD, rows=GOOD.rows | {(77,)})),
    "a skipped event": ("feed_is_complete", _with_feed(1, 2, 4, 5)),
    "a skipped event of a killed writer": ("feed_is_complete", _with_feed(1, 2, 4, 3)),
    "an event twice": ("feed_is_complete", _with_feed(1, 2, 4, 3, 5, 3)),
    "a rolled back event": ("feed_is_complete", _with_feed(1, 2, 4, 3, 5, 9)),
    "another shard": ("feed_is_complete", replace(GOOD, feed={0: FEED[:-1], 1: FEED[-1:]})),
    "a ULID that goes back": (
        "ulids_ascend",
        replace(GOOD, feed={0: (FEED[0], FEED[2], FEED[1], *FEED[3:])}),
    ),
    "a ULID twice": ("ulids_ascend", replace(GOOD, feed={0: (*FEED[:4], (FEED[3][0], (5,)))})),
    "B before A": ("commits_are_in_order", _with_feed(3, 1, 2, 4, 5)),
    "a late one before all": ("commits_are_in_order", _with_feed(5, 1, 2, 3, 4)),
    "a transaction turned round": ("transactions_keep_their_order", _with_feed(2, 1, 4, 3, 5)),
    "an event within another transaction": ("transactions_stay_together", _with_feed(1, 3, 2, 4, 5)),
    "a reader that skipped": ("readers_skip_nothing", replace(GOOD, readings=(Reading("r", 0, FEED[1:]),))),
    "a reader that read twice": (
        "readers_skip_nothing",
        replace(GOOD, readings=(Reading("r", 0, (*FEED[:1], *FEED)),)),
    ),
    "a reader that saw what is gone": (
        "readers_skip_nothing",
        replace(GOOD, readings=(Reading("r", 0, (*FEED, (_ulid(50), (6,)))),)),
    ),
    "one more below a seal": ("sealed_windows_stay", replace(GOOD, seals=(_seal(12, 10),))),
    "one less below a seal": ("sealed_windows_stay", replace(GOOD, seals=(_seal(10, 9),))),
    "another one below a seal": ("sealed_windows_stay", replace(GOOD, seals=(_seal(11, 9),))),
    "one below a seal of an unused shard": (
        "sealed_windows_stay",
        replace(GOOD, seals=(SealRecord(0, _ulid(11), 0, digest([])),)),
    ),
    "another ULID than given": (
        "given_ulids_are_kept",
        replace(GOOD, transactions=(replace(A, given={(1,): _ulid(11)}), *GOOD.transactions[1:])),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_found(name: str) -> None:
    """By the oracle that it belongs to."""
    oracle, history = BROKEN[name]
    assert any(complaint.startswith(f"{oracle}: ") for complaint in judge(history))


def test_every_oracle_was_made_to_fail() -> None:
    """No oracle can be forgotten here."""
    assert {oracle for oracle, _ in BROKEN.values()} == {oracle.__name__ for oracle in ORACLES}
