# SPDX-License-Identifier: Apache-2.0
"""The oracles of captures themselves: a good history passes all, each broken promise is found by its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.integration.contract.capture_oracles import (
    CAPTURE_ORACLES,
    Base,
    CaptureHistory,
    Entry,
    Exported,
    Snapshot,
    Span,
    judge_captures,
)
from tests.integration.contract.oracles import Change, SealRecord, digest, fold

T = "shop.item"


def _ulid(number: int) -> str:
    return f"{number:026}"


def _row(id: int, stamp: int, note: str | None = None) -> dict[str, Any]:
    return {"id": id, "stamp": stamp, "note": note}


def _change(number: int, old: Any, new: Any, tid: int, shard: int = 0) -> Change:
    kind = "add" if old is None else "del" if new is None else "upd"
    return Change(_ulid(number), shard, T, kind, old, new, tid)


#: Transaction A inserts 1 and 2, B updates 1 and moves it to 11, C deletes 2; C ran beside B.
A = [_change(10, None, _row(1, 1), 7), _change(11, None, _row(2, 1), 7)]
B = [
    _change(12, _row(1, 1), _row(1, 2, "x"), 8),
    _change(13, _row(1, 2, "x"), None, 8),
    _change(14, None, _row(11, 3, "x"), 8),
]
C = [_change(15, _row(2, 1), _row(2, 4), 9), _change(16, _row(2, 4), None, 9)]
ALL = A + B + C
JOURNAL = [
    Entry(T, (1,), 1, "A"),
    Entry(T, (2,), 1, "A"),
    Entry(T, (1,), 2, "B"),
    Entry(T, (1,), None, "B"),
    Entry(T, (11,), 3, "B"),
    Entry(T, (2,), 4, "C"),
    Entry(T, (2,), None, "C"),
]
#: The first window ends behind A.
BORDER = 12


def _windows(events: Sequence[Change], border: int = BORDER) -> list[Exported]:
    below = [event for event in events if event.ulid < _ulid(border)]
    above = [event for event in events if event.ulid >= _ulid(border)]
    return [Exported(_ulid(border), {0: below}), Exported(_ulid(99), {0: above})]


def _history(events: Sequence[Change] = ALL, border: int = BORDER, **changes: Any) -> CaptureHistory:
    windows = _windows(events, border)
    history = CaptureHistory(
        keys={T: ("id",)},
        windows=windows,
        again=windows,
        snapshots=[
            Snapshot(_ulid(BORDER), {(T, (1,)): _row(1, 1), (T, (2,)): _row(2, 1)}),
            Snapshot(_ulid(99), {(T, (11,)): _row(11, 3, "x")}),
        ],
        journal=JOURNAL,
        spans={"A": Span(1, 2), "B": Span(3, 5), "C": Span(4, None)},
        feed={0: list(events)},
        seals=[SealRecord(0, _ulid(12), 2, digest([_ulid(10), _ulid(11)]))],
    )
    return replace(history, **changes)


def _without(*places: int) -> list[Change]:
    return [event for place, event in enumerate(ALL) if place not in places]


def _recorded(*rows: dict[str, Any]) -> list[Change]:
    """Record rows behind A, between its two windows' border and B."""
    one = Change(_ulid(11) + "0", 0, T, "reset", None, None)
    adds = [
        replace(_change(11, None, row, 5), ulid=_ulid(11) + f"1{place}", is_snapshot=True)
        for place, row in enumerate(rows)
    ]
    return [*A, one, *adds, replace(one, ulid=_ulid(11) + "2", type="ready"), *B, *C]


def _numbered(events: Sequence[Change]) -> list[Change]:
    """Give events their ULIDs in this order."""
    return [replace(event, ulid=_ulid(10 + place)) for place, event in enumerate(events)]


def test_a_good_history_has_no_complaints() -> None:
    """Whole transactions, chains that hold, and a fold that is the table."""
    assert judge_captures(_history()) == []
    assert judge_captures(_history(_numbered(A + C + B))) == []
    seals = [SealRecord(0, _ulid(10), 0, digest([]))]
    assert judge_captures(_history(_recorded(_row(1, 1), _row(2, 1)), seals=seals)) == []


def test_the_fold_gives_the_rows_that_are_left() -> None:
    """Old keys go, new ones come; what was changed last counts."""
    keys = {T: ("id",)}
    assert fold([], keys) == {}
    assert fold(A + B[:1], keys) == {(T, (1,)): _row(1, 2, "x"), (T, (2,)): _row(2, 1)}
    assert fold(ALL, keys) == {(T, (11,)): _row(11, 3, "x")}
    assert fold(_without(3), keys) == {(T, (1,)): _row(1, 2, "x"), (T, (11,)): _row(11, 3, "x")}


def test_a_reset_takes_the_rows_of_its_table_and_shard() -> None:
    """Those of others stay."""
    keys = {T: ("id",), "shop.part": ("id",)}
    other = replace(_change(1, None, _row(5, 5), 1), table="shop.part")
    elsewhere = replace(_change(2, None, _row(6, 6), 1), shard=1)
    reset = Change(_ulid(50), 0, T, "reset", None, None)
    again = replace(_change(51, None, _row(2, 8), 1), is_snapshot=True)
    assert fold([other, elsewhere, *A, reset, again], keys) == {
        ("shop.part", (5,)): _row(5, 5),
        (T, (6,)): _row(6, 6),
        (T, (2,)): _row(2, 8),
    }


def _swap(events: Sequence[Change], one: int, two: int) -> list[Change]:
    swapped = list(events)
    swapped[one], swapped[two] = swapped[two], swapped[one]
    return swapped


def _with(place: int, **changes: Any) -> list[Change]:
    return [replace(event, **changes) if at == place else event for at, event in enumerate(ALL)]


BROKEN: dict[str, tuple[str, Callable[[], CaptureHistory]]] = {
    "a process failed": ("nobody_failed", lambda: _history(failures=["exporter: exit 1"])),
    "a skipped event": ("exported_is_committed", lambda: _history(_without(4))),
    "a skipped update between two others": ("chains_hold", lambda: _history(_without(2))),
    "an event that nobody committed": ("exported_is_committed", lambda: _history(journal=JOURNAL[:-1])),
    "an event twice": ("exported_is_committed", lambda: _history(_numbered([*A, A[1], *B, *C]))),
    "another old row": ("chains_hold", lambda: _history(_with(2, old=_row(1, 1, "other")))),
    "an old row that was lost": ("chains_hold", lambda: _history(_with(2, old=None))),
    "a skipped delete": ("folds_are_the_tables", lambda: _history(_without(3))),
    "another new row": ("folds_are_the_tables", lambda: _history(_with(4, new=_row(11, 3, "y")))),
    "a row that no event tells of": (
        "folds_are_the_tables",
        lambda: _history(
            snapshots=[Snapshot(_ulid(99), {(T, (1,)): _row(1, 1), (T, (11,)): _row(11, 3, "x")})]
        ),
    ),
    "a base whose rows were read before its begin": (
        "folds_over_bases_are_the_tables",
        lambda: _history(bases=[Base(T, _ulid(BORDER), _ulid(BORDER), [])]),
    ),
    "a base with a row that was gone": (
        "folds_over_bases_are_the_tables",
        lambda: _history(bases=[Base(T, _ulid(99), _ulid(99), [_row(1, 1), _row(11, 3, "x")])]),
    ),
    "a change of a row that no base and no event has made": (
        "folds_over_bases_are_the_tables",
        lambda: _history(bases=[Base(T, _ulid(BORDER), _ulid(BORDER), [_row(2, 1)])]),
    ),
    "a row that was not recorded": (
        "recordings_are_the_tables",
        lambda: _history(_recorded(_row(2, 1))),
    ),
    "a row that was recorded as it was before": (
        "recordings_are_the_tables",
        lambda: _history(_recorded(_row(1, 0), _row(2, 1))),
    ),
    "one more in a window at the end": (
        "windows_stay",
        lambda: _history(_without(1), feed={0: ALL}),
    ),
    "one less when exported again": ("windows_stay", lambda: _history(again=_windows(ALL[:-1]))),
    "a window that is not exported again": ("windows_stay", lambda: _history(again=_windows(ALL)[:1])),
    "another row when exported again": (
        "windows_stay",
        lambda: _history(again=_windows(_with(0, new=_row(1, 1, "z")))),
    ),
    "one more below a seal": (
        "nothing_comes_below_a_seal",
        lambda: _history(seals=[SealRecord(0, _ulid(12), 1, digest([_ulid(10)]))]),
    ),
    "a torn transaction": ("transactions_are_whole", lambda: _history(_numbered(_swap(ALL, 4, 5)))),
    "a transaction turned round": ("transactions_are_whole", lambda: _history(_numbered(_swap(ALL, 2, 4)))),
    "a transaction in two windows": ("transactions_are_whole", lambda: _history(border=13)),
    "a transaction with two numbers": ("transactions_are_whole", lambda: _history(_with(3, tid=5))),
    "a transaction without a number": ("transactions_are_whole", lambda: _history(_with(3, tid=None))),
    "two transactions of one number": (
        "transactions_are_whole",
        lambda: _history([replace(event, tid=8) if event in C else event for event in ALL]),
    ),
    "B before A": (
        "commits_are_in_order",
        lambda: _history(
            spans={"A": Span(1, 2), "B": Span(3, 4), "C": Span(5, 6)}, events=_numbered(A + C + B)
        ),
    ),
    "a ULID twice": ("ulids_ascend", lambda: _history(_with(4, ulid=_ulid(13)))),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_found(name: str) -> None:
    """By the oracle that it belongs to."""
    oracle, history = BROKEN[name]
    assert any(complaint.startswith(f"{oracle}: ") for complaint in judge_captures(history()))


def test_every_oracle_was_made_to_fail() -> None:
    """No oracle can be forgotten here."""
    assert {oracle for oracle, _ in BROKEN.values()} == {oracle.__name__ for oracle in CAPTURE_ORACLES}
