# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed consume`` and ``dead-letters``."""

from __future__ import annotations

import base64
import json
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from airflow.utils.platform import getuser

from airflow_changefeed.cli.command import Row, ask, command, echo, feeds_command, open_feeds, show
from airflow_changefeed.consumers.settings import check_events
from airflow_changefeed.core.codec import encode
from airflow_changefeed.core.consumer import DeadLetterState
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import counted
from airflow_changefeed.exceptions import (
    ConsumerNotFoundError,
    DeadLetterError,
    InvalidArgumentError,
    StoppedError,
    visible,
)

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from airflow_changefeed.core.consumer import DeadLetter
    from airflow_changefeed.sources.base import FeedSource


_POLL_TIMEOUT = "poll_timeout"


@command
def consume(args: Namespace) -> None:
    """Consume events until stopped."""
    from airflow_changefeed.consumers.holding import holders

    _check(args)
    with open_feeds(args.conn_id) as source, _stopping() as stop:
        feed = args.feed or _only_feed(source, args.name)
        if held := holders(source, args.name, feed):
            listed = shell("leases", "--consumer", args.name, "--feed", feed)
            echo(f"Waiting for shards that other processes hold: {'; '.join(held)}. To see them: {listed}")
        if args.handler is None:
            events = _print_events(source, feed, args, stop)
        else:
            events = _run_handler(source, feed, args, stop)
        echo(f"Consumed {counted(events, 'event')} of feed {feed}")
        if args.at_head and stop.is_set():
            raise StoppedError("stopped before all events were consumed; run the same command to continue")


def _check(args: Namespace) -> None:
    printing = {"--options": args.options, "--output": args.output}
    running = {"--handler-timeout": args.handler_timeout, "--on-poison": args.on_poison}
    given = printing if args.handler is not None else running
    problems = [name for name, value in given.items() if value is not None]
    if problems:
        side = "with" if args.handler is not None else "without"
        raise InvalidArgumentError(f"{', '.join(problems)} cannot be used {side} --handler")


def _only_feed(source: FeedSource, consumer: str) -> str:
    feeds = [info.spec.feed for info in source.consumers() if info.spec.consumer == consumer]
    if not feeds:
        known = sorted({info.spec.consumer for info in source.consumers()})
        raise ConsumerNotFoundError(
            f"consumer {consumer!r} not found; known consumers: {', '.join(known) or 'none'}. Create it "
            f"first: {shell('consumer create', consumer, '--feed', '...')}",
            consumer=consumer,
        )
    if len(feeds) > 1:
        raise InvalidArgumentError(
            f"consumer {consumer!r} exists on several feeds ({', '.join(feeds)}); choose one with --feed"
        )
    return feeds[0]


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Set the event on SIGINT and SIGTERM, so that the block stops after the current event."""
    stop = threading.Event()
    # Python allows signal handlers only in the main thread.
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_handler(source: FeedSource, feed: str, args: Namespace, stop: threading.Event) -> int:
    from airflow_changefeed.consumers.run import run_consumer
    from airflow_changefeed.core.consumer import OnPoison

    done = run_consumer(
        source,
        args.name,
        feed,
        args.handler,
        at_head=args.at_head,
        max_events=args.max_events,
        handler_timeout=args.handler_timeout and args.handler_timeout.total_seconds(),
        on_poison=None if args.on_poison is None else OnPoison(args.on_poison),
        stop=stop,
    )
    if done.parked:
        listed = shell("dead-letters list", "--consumer", args.name, "--feed", feed)
        echo(f"Parked {counted(done.parked, 'event')}: see {listed}")
    return done.events


def _print_events(source: FeedSource, feed: str, args: Namespace, stop: threading.Event) -> int:
    from airflow_changefeed.consumers.consumer import EVENT, ID, default_rows
    from airflow_changefeed.consumers.settings import DefaultOptions, Pace

    options = DefaultOptions() if args.options is None else DefaultOptions.from_json(args.options)
    is_silent = args.at_head and options.poll_timeout is None
    if is_silent:
        options = replace(options, poll_timeout=0)
    seen, last = 0, None
    is_over = threading.Event()

    def should_stop() -> bool:
        return stop.is_set() or is_over.is_set()

    with (
        printer(args.output or "json") as write,
        closing(
            default_rows(source, args.name, feed, options, should_stop=should_stop, pace=Pace(wait=stop.wait))
        ) as rows,
    ):
        for row in rows:
            is_head = row[EVENT] == _POLL_TIMEOUT
            if row[ID] is not None and row[ID] != last:
                seen, last = seen + 1, row[ID]
            if seen == args.max_events and row[EVENT] != "old":
                # Requesting the next row consumes this one and ends the loop.
                is_over.set()
            if not (is_head and is_silent):
                write(row)
            if is_head and args.at_head:
                break
    return seen


@contextmanager
def printer(format_: str) -> Iterator[Callable[[Row], None]]:
    """
    Yield a function that writes a row: as a JSON object, or as a line of a table as wide as its first row.

    It flushes each row, because requesting the next row consumes this one: a buffered row could be lost.
    """
    if format_ == "json":
        yield lambda row: print(json_text(row), flush=True)
        return
    widths: dict[str, int] = {}

    def write(row: Row) -> None:
        texts = {name: "" if value is None else json_text(value).strip('"') for name, value in row.items()}
        if not widths:
            widths.update({name: max(len(name), len(text)) for name, text in texts.items()})
            print(_line({name: name for name in texts}, widths))
            print(_line({name: "=" * width for name, width in widths.items()}, widths))
        print(_line(texts, widths), flush=True)

    yield write


def _line(texts: Mapping[str, str], widths: Mapping[str, int]) -> str:
    return " | ".join(text.ljust(widths[name]) for name, text in texts.items()).rstrip()


def json_text(value: Any) -> str:
    """
    Return a value as exact JSON, as in exports (docs/reference/event-shapes.md).

    Decimals keep all digits, integers of any size stay integers, bytes are base64, times ISO 8601.
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(k))}: {json_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(json_text, value)) + "]"
    if isinstance(value, (datetime, date, time)):
        return json.dumps(value.isoformat())
    if isinstance(value, (bytes, bytearray, memoryview)):
        return json.dumps(base64.b64encode(value).decode("ascii"))
    if isinstance(value, (Decimal, float)):
        return _number_text(value)
    is_plain = value is None or isinstance(value, (bool, int))
    return visible(json.dumps(value if is_plain else str(value), ensure_ascii=False))


def _number_text(value: Decimal | float) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    if math.isfinite(value):
        return json.dumps(value)
    return json.dumps({math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN"))


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
    names = ("number", "consumer", "feed", "shard", "ulid", "state", "attempts", "reason")
    return {name: row[name] for name in names}
