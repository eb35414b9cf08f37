# SPDX-License-Identifier: Apache-2.0
"""The asset of an export: its URI, and which events an attempt makes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.task_runner import _build_asset_profiles, _serialize_outlet_events

from airflow_changefeed.assets.changefeed import ALIAS, changefeed_asset
from airflow_changefeed.core.codec import encode
from airflow_changefeed.cursors import cursors
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.export.completed import CompletedExport
from airflow_changefeed.transfers import export as transfers_export
from airflow_changefeed.version_compat import AIRFLOW_V_3_2_PLUS
from tests.minors import since
from tests.unit.airflow.conftest import FEED, START, insert
from tests.unit.airflow.fakes import context
from tests.unit.airflow.test_operator import HOUR, Crash, crash_before, operator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("server")]


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        ("/data/export", "file:///data/export/nyc.Flight"),
        ("/data/export/", "file:///data/export/nyc.Flight"),
        ("/data/other/../export", "file:///data/export/nyc.Flight"),
        ("file:///data/export", "file:///data/export/nyc.Flight"),
        ("export", f"file://{os.getcwd()}/export/nyc.Flight"),
        ("s3://bucket/export/", "s3://bucket/export/nyc.Flight"),
        pytest.param(
            "abfss://box@account.dfs.core.windows.net/x",
            "abfss://box@account.dfs.core.windows.net/x/nyc.Flight",
            marks=since("3.1", "assets with a user in their URI"),
        ),
        ("memory://x", "memory://x/nyc.Flight"),
        ("/data/a#1?b", "file:///data/a%231%3Fb/nyc.Flight"),
        ("/data/sø", "file:///data/s%C3%B8/nyc.Flight"),
    ],
)
def test_the_uri_is_that_of_the_folder(given: str, uri: str) -> None:
    """All spellings of a local path are one asset, which Airflow leaves as it is."""
    asset = changefeed_asset(FEED, given)
    assert (asset.uri, asset.name) == (uri, uri)
    assert changefeed_asset(FEED, asset.uri.removesuffix(f"/{FEED}")) == asset


def test_feeds_of_one_output_are_different_assets() -> None:
    """Also those whose names no folder can have; missing names are refused all at once."""
    assert changefeed_asset("a/b", "/x").uri == "file:///x/a-x2F-b"
    assert changefeed_asset("a b", "/x") != changefeed_asset("a%20b", "/x")
    with pytest.raises(InvalidArgumentError, match="feed is missing; path is missing"):
        changefeed_asset("", " ")


def events(task: Any, made: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events that Airflow's API server is told of, and who is told by an alias of the task's."""
    aliases = {
        profile.name for profile in _build_asset_profiles(task.outlets) if profile.type == "AssetAlias"
    }
    sent = list(_serialize_outlet_events(made["outlet_events"]))
    assert (
        {event["source_alias_name"] for event in sent if "source_alias_name" in event} <= aliases == {ALIAS}
    )
    if not AIRFLOW_V_3_2_PLUS:
        for event in sent:
            event["extra"] = encode(CompletedExport.from_extra(event["extra"]))
    return sent


def export(task: Any, *interval: Any) -> list[dict[str, Any]]:
    """Run a task, and return its events."""
    made = context(*interval)
    task.execute(made)
    return events(task, made)


def test_the_windows_of_a_run_are_an_event_of_the_asset(database: str, path: str) -> None:
    """Three hours of two shards are one event with feed, windows, rows and manifests."""
    (sent,) = export(operator(path, local_below=1000), START, START + 3 * HOUR)
    assert sent["dest_asset_key"]["uri"] == f"file://{path}/{FEED}"
    extra = sent["extra"]
    assert (extra["feed"], extra["window_start"], extra["window_end"], extra["rows"]) == (
        FEED,
        "2013-01-01T00:00:00Z",
        "2013-01-01T03:00:00Z",
        18,
    )
    assert [(each["window_start"], each["rows"]) for each in extra["windows"]] == [
        (f"2013-01-01T0{hour}:00:00Z", 6) for hour in range(3)
    ]
    assert len(extra["manifests"]) == 6
    assert all(Path(manifest).exists() for manifest in extra["manifests"])
    assert [len(one.files()) for one in CompletedExport.from_extra(extra).each()] == [2, 2, 2]
    # A complete window without rows is an event as well, for those that follow.
    (sent,) = export(operator(path), START + 8 * HOUR, START + 9 * HOUR)
    assert (sent["extra"]["rows"], len(sent["extra"]["manifests"])) == (0, 2)


def test_older_airflows_get_values_that_go_into_a_set(
    database: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow 3.0 puts them there, and would fail the task; the event reads the same."""
    expected = export(operator(path, local_below=1000), START, START + 3 * HOUR)[0]["extra"]
    monkeypatch.setattr("airflow_changefeed.assets.changefeed.AIRFLOW_V_3_2_PLUS", False)
    made = context(START, START + 3 * HOUR)
    operator(path, local_below=1000).execute(made)
    (sent,) = _serialize_outlet_events(made["outlet_events"])
    assert frozenset(sent["extra"].items())
    again = {**encode(CompletedExport.from_extra(sent["extra"])), "manifests": expected["manifests"]}
    assert again == expected


def test_a_batch_is_an_event_and_no_batch_is_none(database: str, path: str) -> None:
    """A run without a window tells its ranges; one without anything to export tells nothing."""
    task = operator(path, unit=None, mode="batch", local_below=1000)
    (sent,) = export(task)
    extra = sent["extra"]
    assert (extra["window_start"], extra["window_end"], extra["rows"]) == (None, None, 36)
    assert sorted(extra["batch"]) == ["0", "1"]
    assert export(task) == []


def test_an_asset_among_the_outlets_is_not_told_twice(database: str, path: str) -> None:
    """Airflow makes an event of it by itself, which takes what is told. Other outlets are left alone."""
    outlets = [changefeed_asset(FEED, path), Asset("file:///other")]
    (sent,) = export(operator(path, local_below=1000, outlets=outlets), START, START + 2 * HOUR)
    assert "source_alias_name" not in sent
    assert sent["dest_asset_key"]["uri"] == outlets[0].uri
    assert (sent["extra"]["feed"], sent["extra"]["rows"]) == (FEED, 12)


def test_only_what_this_attempt_has_finished_is_told(database: str, path: str) -> None:
    """An attempt that dies tells nothing; the one that makes it good tells its windows once."""
    made = context(START, START + 2 * HOUR)
    with pytest.MonkeyPatch.context() as patch:
        crash_before(patch, cursors, "advance")
        with pytest.raises(Crash):
            operator(path, local_below=1000).execute(made)
    assert list(_serialize_outlet_events(made["outlet_events"])) == []
    assert len(export(operator(path, local_below=1000), START, START + 2 * HOUR)) == 1


def crash_after_the_move(task: Any, made: dict[str, Any]) -> None:
    """Run a task that dies when its cursor has moved, before it tells anything."""
    with pytest.MonkeyPatch.context() as patch:
        crash_before(patch, transfers_export, "emit")
        with pytest.raises(Crash):
            task.execute(made)
    assert list(_serialize_outlet_events(made["outlet_events"])) == []


def test_a_retry_tells_what_a_try_that_died_behind_the_cursor_committed(database: str, path: str) -> None:
    """Together with what came since, as one range of each shard; the result says so as well."""
    task = operator(path, unit=None, mode="batch", local_below=1000)
    crash_after_the_move(task, context())
    made = context(attempt=2)
    result = task.execute(made)
    assert (result["rows"], result["units"], len(result["manifests"])) == (36, 2, 2)
    assert set(result["cursors"]) == {"0", "1"}
    (sent,) = events(task, made)
    assert (sent["extra"]["rows"], sorted(sent["extra"]["batch"])) == (36, ["0", "1"])
    insert(database, range(36, 42), START)
    crash_after_the_move(task, context(attempt=3))
    made = context(attempt=4)
    assert task.execute(made)["rows"] == 42
    told = CompletedExport.from_extra(events(task, made)[0]["extra"])
    assert sum(batch.num_rows for batch in told.batches()) == told.rows == 42


def test_a_retry_tells_all_of_a_batch_whose_cursor_did_not_move(database: str, path: str) -> None:
    """The batch that was committed and what came since are two units of a shard, and one range."""
    task = operator(path, unit=None, mode="batch", local_below=1000)
    with pytest.MonkeyPatch.context() as patch:
        crash_before(patch, cursors, "advance")
        with pytest.raises(Crash):
            task.execute(context())
    insert(database, range(36, 42), START)
    made = context(attempt=2)
    task.execute(made)
    told = CompletedExport.from_extra(events(task, made)[0]["extra"])
    assert sum(batch.num_rows for batch in told.batches()) == told.rows == 42


@pytest.mark.parametrize("other", [{"dag_id": "other"}, {"run_id": "other"}, {"map_index": 3}], ids=str)
def test_a_retry_does_not_tell_what_others_committed(database: str, path: str, other: dict[str, Any]) -> None:
    """Another DAG, run or mapped task tells its own; neither does a first try look back."""
    task = operator(path, unit=None, mode="batch", local_below=1000)
    crash_after_the_move(task, context())
    for attempt, named in ((2, other), (1, {})):
        made = context(attempt=attempt)
        vars(made["ti"]).update(named)
        assert task.execute(made)["rows"] == 0
        assert events(task, made) == []


def test_batches_of_other_runs_do_not_hide_those_of_earlier_tries(database: str, path: str) -> None:
    """A neighbour went on from the moved cursor before the retry began: its batch is told once more."""
    task = operator(path, unit=None, mode="batch", local_below=1000)
    crash_after_the_move(task, context())
    insert(database, range(36, 42), START)
    neighbour = context()
    neighbour["ti"].run_id = "later"
    assert task.execute(neighbour)["rows"] == 6
    made = context(attempt=2)
    assert task.execute(made)["rows"] == 42
    told = CompletedExport.from_extra(events(task, made)[0]["extra"])
    assert sum(batch.num_rows for batch in told.batches()) == told.rows == 42
