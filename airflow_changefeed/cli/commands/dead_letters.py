# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed dead-letters``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.utils.platform import getuser

from airflow_changefeed.cli.command import Row, ask, echo, feeds_command, show
from airflow_changefeed.consumers.dead_letters import check_events
from airflow_changefeed.core.codec import encode
from airflow_changefeed.core.consumer import DeadLetterState
from airflow_changefeed.core.feed import counted
from airflow_changefeed.exceptions import DeadLetterError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from airflow_changefeed.core.consumer import DeadLetter
    from airflow_changefeed.sources.base import FeedSource


@feeds_command
def list_dead_letters(source: FeedSource, args: Namespace) -> None:
    """Show dead letters."""
    found = source.dead_letters(args.feed, args.consumer, is_open=not args.all)
    show([encode(dead_letter) for dead_letter in found], args.output, _short)
    echo(f"Dead letters: {len(found)}; open: {sum(dead_letter.state.is_open for dead_letter in found)}")


@feeds_command
def retry(source: FeedSource, args: Namespace) -> None:
    """Retry events."""
    dead_letters = _open(source, args.number)
    check_events(source, dead_letters)
    found = [
        source.resolve_dead_letter(dead_letter.number, DeadLetterState.RETRY, by=getuser())
        for dead_letter in dead_letters
    ]
    show([encode(dead_letter) for dead_letter in found], args.output, _short)
    names = sorted({dead_letter.consumer for dead_letter in found})
    echo(f"The next run of {', '.join(names)} retries {counted(len(found), 'event')}")


@feeds_command
def drop(source: FeedSource, args: Namespace) -> None:
    """Discard events, after confirmation."""
    dead_letters = _open(source, args.number)
    if not args.yes:
        show([encode(dead_letter) for dead_letter in dead_letters], "table", _short, on_error=True)
        ask(f"Discard {counted(len(dead_letters), 'event')}?", "Nothing was dropped")
    found = [
        source.resolve_dead_letter(dead_letter.number, DeadLetterState.DROPPED, by=getuser(), note=args.note)
        for dead_letter in dead_letters
    ]
    show([encode(dead_letter) for dead_letter in found], args.output, _short)
    echo(f"Dropped {counted(len(found), 'dead letter')}")


def _open(source: FeedSource, numbers: Sequence[int]) -> list[DeadLetter]:
    """Return the dead letters; if one of them is not open, fail before any other is changed."""
    dead_letters = {dead_letter.number: dead_letter for dead_letter in source.dead_letters(is_open=False)}
    wanted = dict.fromkeys(numbers)
    problems = [f"dead letter {number} not found" for number in wanted if number not in dead_letters]
    problems += [
        f"dead letter {number} is already {dead_letters[number].state.value}"
        for number in wanted
        if number in dead_letters and not dead_letters[number].state.is_open
    ]
    if problems:
        raise DeadLetterError(f"{'; '.join(problems)}. Nothing was changed", problems=problems)
    return [dead_letters[number] for number in wanted]


def _short(row: Row) -> Row:
    """Return the values of a dead letter that fit a screen."""
    names = ("number", "consumer", "feed", "shard", "ulid", "state", "attempts", "reason")
    return {name: row[name] for name in names}
