# SPDX-License-Identifier: Apache-2.0
"""The tree of errors: as drawn, terminal or transient, and alive after pickling."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from airflow_changefeed import exceptions
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import (
    ChangefeedError,
    InvalidArgumentError,
    TerminalError,
    TransientError,
    error_text,
    own_error,
    visible,
)

_STEP = 4  # characters by which the drawing goes in for each level


def _all(cls: type[ChangefeedError]) -> list[type[ChangefeedError]]:
    return [cls, *(sub for child in cls.__subclasses__() for sub in _all(child))]


CLASSES = [cls for cls in _all(ChangefeedError) if cls.__module__ == exceptions.__name__]


def _drawn() -> dict[str, str | None]:
    """Read the drawing in the module's docstring: name to the name of what it hangs from."""
    parents: dict[str, str | None] = {}
    above: list[str] = []
    for line in (exceptions.__doc__ or "").splitlines():
        found = re.match(r"^    ((?:[│ ]   )*)(?:[├└]── )?([A-Z]\w*Error)\b", line)
        if found:
            level = (found.start(2) - 4) // _STEP
            del above[level:]
            parents[found[2]] = above[-1] if above else None
            above.append(found[2])
    return parents


def test_the_drawing_is_the_tree() -> None:
    """Each class hangs where the docstring draws it, and none is left out."""
    ours = {cls.__name__ for cls in CLASSES}
    real = {
        cls.__name__: next((base.__name__ for base in cls.__bases__ if base.__name__ in ours), None)
        for cls in CLASSES
    }
    assert _drawn() == real


def test_every_error_survives_pickling_with_its_facts() -> None:
    """Spark and Airflow hand errors from process to process; each is terminal or transient, and explained."""
    facts = {"feed": "nyc.Flight", "shard": 3, "after": Ulid.of_int(7), "problems": ["a", "b"]}
    for cls in CLASSES:
        error = cls("feed 'nyc.Flight': what happened; what to do", **facts)
        pickled = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
        for found in (pickled, copy.copy(error), copy.deepcopy(error)):
            assert type(found) is cls
            assert str(found) == str(error) == "feed 'nyc.Flight': what happened; what to do"
            assert found.facts == facts
            assert all(getattr(found, name) == value for name, value in facts.items())
            assert found.transient is error.transient is issubclass(cls, TransientError)
        assert cls is ChangefeedError or issubclass(cls, TerminalError) != issubclass(cls, TransientError)
        assert cls.__doc__


class Mute(Exception):
    """An error whose message cannot be made."""

    def __str__(self) -> str:
        raise ZeroDivisionError


def test_any_error_is_handed_on_as_text_that_can_be_written() -> None:
    """To another process, and into its result, from which it is read again."""
    for error, message in (
        (OSError("no caf\udce9.txt"), r"OSError: no caf\udce9.txt"),
        (ValueError("a\0b"), r"ValueError: a\x00b"),
        (Mute(), "Mute: its message cannot be shown: __str__ or __repr__ raised ZeroDivisionError"),
    ):
        assert own_error(error).message == message
        line = error_text(error)
        assert line.encode().decode() == line
        assert own_error(line).message == message


def test_no_character_is_invisible() -> None:
    """Letters of all scripts stay; what leads a terminal or turns the direction of text is an escape."""
    for text, shown in (
        ("Sträße, 東京, יפו, 🛫", "Sträße, 東京, יפו, 🛫"),
        ("\x1b[2Jgone", r"\u001b[2Jgone"),
        ("\x9b2J\x7f\r", r"\u009b2J\u007f\r"),
        ("order\u202etxt.exe\u2066", r"order\u202etxt.exe\u2066"),
        ("a\u2028b\u2029\ud800\u200b", r"a\u2028b\u2029\ud800\u200b"),
        ("hidden\U000e0041", r"hidden\udb40\udc41"),
        ('{"a": "\x85"}', r'{"a": "\u0085"}'),
        ("two\nlines\t", r"two\nlines\t"),
    ):
        assert visible(text) == shown
        assert visible(shown) == shown
        # An error may have several lines.
        lines = shown.replace(r"\n", "\n").replace(r"\t", "\t")
        assert InvalidArgumentError(text).message == lines


def test_wrong_arguments_are_value_errors_too() -> None:
    """Callers who know nothing of us catch what they expect."""
    for cls in (InvalidArgumentError, exceptions.InvalidUlidError, exceptions.InvalidWindowError):
        assert issubclass(cls, ValueError)


def test_collect_raises_one_error_for_all_problems() -> None:
    """All wrong parameters are named at once, and none means no error."""
    InvalidArgumentError.collect("thing", [])
    with pytest.raises(InvalidArgumentError, match="thing: a is wrong; b is wrong") as caught:
        InvalidArgumentError.collect("thing", ["a is wrong", "b is wrong"])
    assert caught.value.facts["problems"] == ["a is wrong", "b is wrong"]
