# SPDX-License-Identifier: Apache-2.0
"""The pages on consumers: their code runs, and what it prints is what they say."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.consumers.run import run_consumer
from airflow_changefeed.consumers.settings import DefaultOptions, create_consumer
from airflow_changefeed.core.consumer import ConsumerSpec, DeadLetterState
from tests.examples import DOCS, examples, run_example
from tests.unit.consumers.feeds import Shop

FEED = "shop.orders_changes"
_BLOCK = re.compile(r"```(python|text)\n(.*?)```", re.DOTALL)


def test_the_tutorial_runs(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From an empty folder to a second consumer; what is printed and logged is what it says."""
    text = (DOCS / "tutorial/consume-events.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    for language, block in _BLOCK.findall(text):
        if language == "python":
            run_example(block, names)
        else:
            assert capsys.readouterr().out == block
    assert capsys.readouterr().out == ""
    names["connection"].close()
    failed = [record for record in caplog.records if "failed: ValueError" in record.getMessage()]
    # Four attempts in two runs, each of which shows the handler's traceback once.
    assert ["Traceback" in record.getMessage() for record in failed] == [True, False, False, True]
    begins = "consumer mailer, feed shop.orders_changes, shard 0: attempt"
    assert all(record.getMessage().startswith(begins) for record in failed)
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.fixture
def orders(shop: Shop) -> Shop:
    """Give a shop whose orders are captured."""
    from airflow_changefeed.core.capture import CaptureSpec, TableCapture

    shop.connection.execute('create table "shop.orders" (id integer primary key, status text)')
    shop.source.enable_capture(CaptureSpec((TableCapture("shop.orders"),)))
    return shop


def _order(shop: Shop, number: int) -> None:
    shop.connection.execute("insert into \"shop.orders\" values (?, 'new')", (number,))


def test_recovering_runs(orders: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """Each remedy that the page shows."""
    create_consumer(orders.source, ConsumerSpec("mailer", FEED, max_attempts=1), by="test")

    def fails(event: Any, connection: Any) -> None:
        raise ValueError("no mail")

    _order(orders, 1)
    _order(orders, 2)
    names: dict[str, Any] = {"source": orders.source, "handler": fails, "run_consumer": run_consumer}
    log, park, resolve, again = examples("reference/consumers.md#recover-a-consumer", {})
    run_example(park, names)
    run_example(log, names)
    assert capsys.readouterr().out.count("ValueError: no mail") == 4
    run_example(resolve, names)
    states = [dead_letter.state for dead_letter in orders.source.dead_letters(is_open=False)]
    assert states == [DeadLetterState.RETRY, DeadLetterState.DROPPED]
    run_example(again, names)
    assert [info.spec.consumer for info in orders.source.consumers(FEED)] == ["mailer", "mailer-2"]


def test_the_reference_runs(orders: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """And its options are all there are."""
    create, run, later = examples("reference/consumers.md", {})[:3]
    seen: list[Any] = []
    names: dict[str, Any] = {
        "source": orders.source,
        "mail": lambda connection, event: seen.append(event.new["id"]),
        "mail_batch": lambda events, connection: seen.extend(event.new["id"] for event in events),
    }
    run_example(create, names)
    _order(orders, 1)
    run_example(later, names)
    asyncio.run(names["mail_all"]())
    _order(orders, 2)
    run_example(run.replace("seconds=2.0", "seconds=0.0"), names)
    assert seen == [1, 2]
    assert capsys.readouterr().out == "1 1 0 0 0\n"
    (options,) = examples("reference/consumers.md", {}, "json")
    read = DefaultOptions.from_json(options)
    assert set(vars(read)) == set(re.findall(r'"(\w+)":', options))


def test_the_reference_names_every_call() -> None:
    """Of consumers and of events."""
    from airflow_changefeed.consumers.consumer import Consumer
    from airflow_changefeed.consumers.event import FeedEvent

    text = (DOCS / "reference/consumers.md").read_text(encoding="utf-8")
    internal = {"page", "place", "metadata", "transaction", "is_captured"}
    calls = {name for name in dir(FeedEvent) if not name.startswith("_")} - internal
    calls |= {name for name in dir(Consumer) if not name.startswith("_")} - {
        "acknowledge",
        "check_batch",
        "log",
        "receive",
        "rest",
        "rest_seconds",
        "token",
    }
    assert [name for name in sorted(calls) if not re.search(rf"`{name}\b", text)] == []
