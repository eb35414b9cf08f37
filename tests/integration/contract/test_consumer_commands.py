# SPDX-License-Identifier: Apache-2.0
"""The default consumer at the command line, with all of its options, on every engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_changefeed.consumers.consumer import Consumer
from tests.integration.contract.consumer_data import BATCHES, NAME, data_batches
from tests.integration.contract.engines import Engine
from tests.unit.airflow.commands import Commands, connection_json

TEXTS = [text for texts in BATCHES for text in texts]


@pytest.fixture
def commands(engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Give the commands on the engine's database."""
    monkeypatch.setenv(
        "AIRFLOW_CONN_CHANGEFEED_DEFAULT", connection_json(engine.source(lock_timeout=20).describe())
    )
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    return Commands(capsys)


def _lines(commands: Commands, *arguments: str, **options: Any) -> list[dict[str, Any]]:
    """Consume to the head, and return what was printed."""
    words = ("consume", NAME, "--at-head", "--options", json.dumps(options), *arguments)
    assert commands.run(*words) == 0, commands.err
    return [json.loads(line) for line in commands.out.splitlines()]


def _texts(lines: list[dict[str, Any]]) -> list[str]:
    return [line["data"] or line["changefeed_event"] for line in lines]


def test_metadata_is_printed(engine: Engine, commands: Commands) -> None:
    """Epoch, sequence and transaction, beside what happened and its id."""
    data_batches(engine, with_sequence=True)
    lines = _lines(commands, with_epoch=True, with_sequence=True, with_tid=True, poll_timeout=0)
    assert lines.pop()["changefeed_event"] == "poll_timeout"
    assert _texts(lines) == TEXTS
    assert [line["changefeed_sequence"] for line in lines] == list(range(1, 11))
    tids = [line["changefeed_tid"] for line in lines]
    assert [tids.count(tid) for tid in dict.fromkeys(tids)] == [1, 2, 2, 5]
    assert all(line["changefeed_epoch"] > 0 for line in lines)
    assert len({line["changefeed_id"] for line in lines}) == len(lines)


def test_transactions_are_printed_whole(engine: Engine, commands: Commands) -> None:
    """With a line at each boundary."""
    data_batches(engine)
    lines = _lines(commands, batch_consume=True, with_txn_sentinel=True)
    assert _texts(lines) == [text for texts in BATCHES for text in (*texts, "txn")]


def test_an_update_is_printed_in_two_lines(engine: Engine, commands: Commands) -> None:
    """Old and new, by one id; a delete in one."""
    bench = data_batches(engine)
    assert _texts(_lines(commands)) == TEXTS
    bench.run("update \"shop.t\" set data = '2nd' where data = 'second'")
    bench.run("delete from \"shop.t\" where data = '2nd'")
    old, new, gone = _lines(commands, emit_timeout=5_000)
    assert [line["changefeed_event"] for line in (old, new, gone)] == ["old", "new", "del"]
    assert [line["data"] for line in (old, new, gone)] == ["second", "2nd", "2nd"]
    assert old["changefeed_id"] == new["changefeed_id"] != gone["changefeed_id"]


def test_a_line_tells_that_another_one_is_at_work(engine: Engine, commands: Commands) -> None:
    """As often as the time runs out; then the other one's lease does, as somebody waits for it."""
    bench = data_batches(engine)
    with Consumer(bench.source, NAME, bench.name, emit_timeout=3.0) as other:
        other.register()
        lines = _lines(commands, register_timeout=50)
    assert lines[0]["changefeed_event"] == "register_timeout"
    assert [text for text in _texts(lines) if text != "register_timeout"] == TEXTS


def test_a_table_is_for_people(engine: Engine, commands: Commands) -> None:
    """The same, in columns."""
    data_batches(engine)
    assert commands.run("consume", NAME, "--at-head", "--output", "table") == 0, commands.err
    assert all(text in commands.out for text in TEXTS)
