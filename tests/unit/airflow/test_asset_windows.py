# SPDX-License-Identifier: Apache-2.0
"""Each window is a partition of a second asset, the folder of an export's manifests."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.task_runner import _build_asset_profiles, _serialize_outlet_events

from airflow_changefeed.assets.changefeed import changefeed_windows
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.export.completed import CompletedExport
from tests.minors import since
from tests.unit.airflow.conftest import FEED, START
from tests.unit.airflow.fakes import context
from tests.unit.airflow.test_operator import HOUR, operator

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.usefixtures("server"),
    since("3.3", "partitions of an asset"),
]


def partitions(task: Any, made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Run a task, and return the extras of its keyed events by their keys."""
    task.execute(made)
    sent = list(_serialize_outlet_events(made["outlet_events"]))
    outlets = {profile.uri for profile in _build_asset_profiles(task.outlets) if profile.type == "Asset"}
    keyed = {event["partition_key"]: event for event in sent if "partition_key" in event}
    assert {event["dest_asset_key"]["uri"] for event in keyed.values()} == outlets & {windows_of(task)}
    return {key: event["extra"] for key, event in sorted(keyed.items())}


def windows_of(task: Any) -> str:
    """Return the URI of the asset whose partitions are a task's windows."""
    return changefeed_windows(task.feed, task.path).uri


@pytest.mark.parametrize("is_outlet", [False, True])
def test_each_window_is_a_partition_where_a_dag_names_the_asset(
    database: str, path: str, is_outlet: bool
) -> None:
    """Its key is the window's start, and its extra what the run has completed."""
    uri = changefeed_windows(FEED, path).uri
    outlets = [Asset(name=f"named {uri}", uri=uri)] if is_outlet else []
    task = operator(path, local_below=1000, outlets=outlets)
    found = partitions(task, context(START, START + 3 * HOUR, named=[uri]))
    assert list(found) == [f"2013-01-01T0{hour}:00:00" for hour in range(3)]
    for key, extra in found.items():
        each = CompletedExport.from_extra(extra).each()
        told = {f"{one.window_start:%Y-%m-%dT%H:%M:%S}": one for one in each}
        assert sum(batch.num_rows for batch in told[key].batches()) == told[key].rows == 6


@pytest.mark.parametrize(
    ("more", "is_named"),
    [({}, False), ({"shards": [0]}, True), ({"unit": None, "mode": "batch"}, True)],
    ids=["no DAG names it", "some shards", "batch"],
)
@pytest.mark.parametrize("is_outlet", [False, True])
def test_no_partition_is_told_otherwise(
    database: str, path: str, more: dict[str, Any], is_named: bool, is_outlet: bool
) -> None:
    """Neither does Airflow make an event without a key, because the asset is not left among the outlets."""
    asset = changefeed_windows(FEED, path)
    outlets = [Asset("file:///other"), *([asset] if is_outlet else [])]
    task = operator(path, local_below=1000, outlets=outlets, **more)
    interval = () if "mode" in more else (START, START + HOUR)
    assert partitions(task, context(*interval, named=[asset.uri] if is_named else [])) == {}
    assert [profile.uri for profile in _build_asset_profiles(task.outlets) if profile.type == "Asset"] == [
        "file:///other"
    ]


def test_an_api_server_that_fails_fails_the_task(database: str, path: str) -> None:
    """Its retry tells all windows again; who counts them would wait for one that is left out."""
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse

    made = context(START, START + HOUR)

    def fail(**_: Any) -> None:
        raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))

    made["outlet_events"]._get_asset_from_db = fail
    with pytest.raises(AirflowRuntimeError, match="API_SERVER_ERROR"):
        operator(path, local_below=1000).execute(made)
    uri = changefeed_windows(FEED, path).uri
    assert list(partitions(operator(path, local_below=1000), context(START, START + HOUR, named=[uri]))) == [
        "2013-01-01T00:00:00"
    ]


def test_the_asset_of_windows_is_the_folder_of_manifests() -> None:
    """Another one than that of the data, with the same care for names."""
    assert changefeed_windows(FEED, "/data/a#1").uri == "file:///data/a%231/_changefeed/nyc.Flight/manifests"
    with pytest.raises(InvalidArgumentError, match="changefeed_windows: path is missing"):
        changefeed_windows(FEED, "")
