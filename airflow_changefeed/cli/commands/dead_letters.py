# SPDX-License-Identifier: Apache-2.0
"""``airflow changefeed dead-letters``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.utils.platform import getuser

from airflow_changefeed.cli.command import Row, ask, command, open_feeds, show, tell
from airflow_changefeed.core.consumer import LetterState
from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.core.times import format_time
from airflow_changefeed.exceptions import DeadLetterError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from airflow_changefeed.core.consumer import DeadLetter
    from airflow_changefeed.sources.base import FeedSource


@command
def list_letters(args: Namespace) -> None:
    """Show dead letters."""
    with open_feeds(args.conn_id) as source:
        found = source.dead_letters(args.feed, args.consumer, is_open=not args.all)
        show([letter_row(letter) for letter in found], args.output, _short)
        tell(f"Dead letters: {len(found)}; open: {sum(letter.state.is_open for letter in found)}")


@command
def retry(args: Namespace) -> None:
    """Let consumers try again."""
    with open_feeds(args.conn_id) as source:
        letters = _open(source, args.number)
        found = [source.settle_letter(letter.number, LetterState.RETRY, by=getuser()) for letter in letters]
        show([letter_row(letter) for letter in found], args.output, _short)
        names = sorted({letter.consumer for letter in found})
        tell(f"The next turn of {', '.join(names)} tries {len(found)} events again")


@command
def drop(args: Namespace) -> None:
    """Do without events, after asking."""
    with open_feeds(args.conn_id) as source:
        letters = _open(source, args.number)
        if not args.yes:
            show([letter_row(letter) for letter in letters], "table", _short, on_error=True)
            ask(f"Do without {len(letters)} events?", "Nothing was dropped")
        found = [
            source.settle_letter(letter.number, LetterState.DROPPED, by=getuser(), note=args.note)
            for letter in letters
        ]
        show([letter_row(letter) for letter in found], args.output, _short)
        tell(f"Dropped {len(found)} dead letters")


def _open(source: FeedSource, numbers: Sequence[int]) -> list[DeadLetter]:
    """Return the letters, all of which are open: one that is not is told before any other is changed."""
    letters = {letter.number: letter for letter in source.dead_letters(is_open=False)}
    wanted = dict.fromkeys(numbers)
    problems = [f"there is no dead letter {number}" for number in wanted if number not in letters]
    problems += [
        f"dead letter {number} is {letters[number].state.value} already"
        for number in wanted
        if number in letters and not letters[number].state.is_open
    ]
    if problems:
        raise DeadLetterError(f"{'; '.join(problems)}: nothing was changed", problems=problems)
    return [letters[number] for number in wanted]


def letter_row(letter: DeadLetter) -> Row:
    """Return a dead letter as JSON has it."""
    return {
        "number": letter.number,
        "consumer": letter.consumer,
        "feed": letter.feed,
        "shard": shard_text(letter.shard),
        "ulid": str(letter.ulid),
        "time": format_time(letter.ulid.time),
        "state": letter.state.value,
        "attempts": letter.attempts,
        "reason": letter.reason,
        "parked_at": format_time(letter.parked_at),
        "parked_by": letter.parked_by,
        "settled_at": None if letter.settled_at is None else format_time(letter.settled_at),
        "settled_by": letter.settled_by,
        "note": letter.note,
    }


def _short(row: Row) -> Row:
    """Return what fits a screen of a dead letter."""
    names = ("number", "consumer", "feed", "shard", "ulid", "state", "attempts", "reason")
    return {name: row[name] for name in names}
