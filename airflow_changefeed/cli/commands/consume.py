# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed consume``."""

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

from airflow_changefeed.cli.command import Row, command, echo, open_feeds
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import counted
from airflow_changefeed.exceptions import (
    ConsumerNotFoundError,
    InvalidArgumentError,
    StoppedError,
    visible,
)

if TYPE_CHECKING:
    from argparse import Namespace

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
            echo(f"Waiting for what other processes hold: {'; '.join(held)}. To see them: {listed}")
        if args.handler is None:
            events = _print_events(source, feed, args, stop)
        else:
            events = _run_handler(source, feed, args, stop)
        echo(f"Consumed {counted(events, 'event')} of feed {feed}")
        if args.at_head and stop.is_set():
            raise StoppedError("stopped before all events were consumed; run the same command to continue")


def _check(args: Namespace) -> None:
    """Refuse options that cannot be combined."""
    printing = {"--json": args.options, "--format": args.format}
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
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in _signals()}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signals() -> tuple[signal.Signals, ...]:
    # Python allows signal handlers only in the main thread.
    is_main = threading.current_thread() is threading.main_thread()
    return (signal.SIGINT, signal.SIGTERM) if is_main else ()


def _run_handler(source: FeedSource, feed: str, args: Namespace, stop: threading.Event) -> int:
    from airflow_changefeed.consumers.handlers.run import run_consumer
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
    from airflow_changefeed.consumers.default import EVENT, ID, default_rows
    from airflow_changefeed.consumers.pace import Pace
    from airflow_changefeed.consumers.settings import DefaultOptions

    options = DefaultOptions() if args.options is None else DefaultOptions.from_json(args.options)
    is_silent = args.at_head and options.poll_timeout is None
    if is_silent:
        options = replace(options, poll_timeout=0)
    seen, last = 0, None
    is_over = threading.Event()

    def should_stop() -> bool:
        return stop.is_set() or is_over.is_set()

    with (
        printer(args.format or "json") as write,
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
    return _number_text(value) if isinstance(value, (Decimal, float)) else _plain_text(value)


def _number_text(value: Decimal | float) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    if math.isfinite(value):
        return json.dumps(value)
    return json.dumps({math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN"))


def _plain_text(value: Any) -> str:
    is_plain = value is None or isinstance(value, (bool, int))
    return visible(json.dumps(value if is_plain else str(value), ensure_ascii=False))
