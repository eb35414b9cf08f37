# SPDX-License-Identifier: Apache-2.0
"""An export as an Airflow asset: its complete windows are the asset's events."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.sdk import Asset, AssetAlias

from airflow_changefeed.core.codec import encode
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.output.layout import Layout
from airflow_changefeed.version_compat import AIRFLOW_V_3_2_PLUS, AIRFLOW_V_3_3_PLUS

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from airflow_changefeed.core.export_plan import Plan
    from airflow_changefeed.export.completed import CompletedExport

#: Name of the alias through which exports emit their windows: a DAG scheduled on it runs for all exports.
ALIAS = "changefeed"
_NO_PATH = re.compile(r"[^ -~]|[?#]")


def changefeed_asset(feed: str, path: str) -> Asset:
    """
    Return the asset of a feed's export: its folder, as a URI.

    A DAG with ``schedule=[changefeed_asset(feed, path)]`` runs when windows are complete.

    :param feed: name of the feed, as the export's.
    :param path: root of the output, as the export's; a local path or an fsspec URL.
    :raises InvalidArgumentError: feed or path is missing.
    """
    return Asset(uri=_layout("changefeed_asset", feed, path).data)


def changefeed_windows(feed: str, path: str) -> Asset:
    """
    Return the asset whose partitions are the windows of an export: the folder of its manifests, as a URI.

    The key of a partition is the start of its window in UTC, as ``2026-03-01T00:00:00``, which Airflow's
    mappers of time read. With it a DAG runs when all windows of its day are complete
    (``PartitionedAssetTimetable``, ``RollupMapper``). The asset has events on Airflow 3.3 and later, if a DAG
    names it.

    :param feed: name of the feed, as the export's.
    :param path: root of the output, as the export's; a local path or an fsspec URL.
    :raises InvalidArgumentError: feed or path is missing.
    """
    return Asset(uri=_layout("changefeed_windows", feed, path).manifests)


def _layout(what: str, feed: str, path: str) -> Layout:
    """Return the folders of an export as URIs."""
    missing = [name for name, value in (("feed", feed), ("path", path)) if not (value and value.strip())]
    InvalidArgumentError.collect(what, [f"{name} is missing" for name in missing])
    # Airflow truncates a URI at these, which can be part of a path here; with MySQL it accepts only ASCII.
    return Layout(_NO_PATH.sub(lambda match: quote(match[0]), _root(path)), feed)


def _root(path: str) -> str:
    """Write a path as a URI: local paths have many spellings, and Airflow compares them as texts."""
    if "://" in path and urlsplit(path).scheme != "file":
        return path.rstrip("/")
    local = path.removeprefix("file://") if path.startswith("file://") else path
    return f"file://{os.path.abspath(os.path.expanduser(local))}"


def export_alias() -> AssetAlias:
    """Return the alias of an export, for outlets: its asset may be known only when it runs."""
    return AssetAlias(ALIAS)


def emit(context: Mapping[str, Any], outlets: Sequence[Any], completed: CompletedExport | None) -> None:
    """
    Make an asset event of what an export has committed; Airflow records it when the task succeeds.

    One event for all windows: Airflow 3.3 wakes a DAG at the time of the first event, and leaves those that
    come after it, also of the same task, to the DAG's next run, which comes with the next export.

    :param context: the task's.
    :param outlets: the task's. Airflow makes an event of each asset among them by itself, also without an
        extra; ours goes into that one.
    :param completed: None makes no event.
    """
    if completed is None:
        return
    asset, events = changefeed_asset(completed.feed, completed.path), context["outlet_events"]
    extra = encode(completed)
    if asset in outlets:
        events[asset].extra.update(extra)
    else:
        if not AIRFLOW_V_3_2_PLUS:
            # Airflow 3.0 makes a set of the values of an alias's event, and fails the task if it cannot.
            extra = {
                name: json.dumps(value) if isinstance(value, (list, dict)) else value
                for name, value in extra.items()
            }
        events[export_alias()].add(asset, extra=extra)


def emit_windows(
    context: Mapping[str, Any], task: BaseOperator, plan: Plan, completed: CompletedExport | None
) -> None:
    """
    Make an asset event of each window, a partition of :func:`changefeed_windows`, if a DAG names that asset.

    Airflow makes an event without a partition of each asset among the outlets by itself, so that this one is
    there only if it has windows.

    :param context: the task's.
    :param task: as it runs.
    :param plan: which is committed. Of a plan for some shards it is not known whether the others are there.
    :param completed: what it has completed; None makes no events.
    """
    if not AIRFLOW_V_3_3_PLUS:
        return
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType

    asset = changefeed_windows(plan.feed, plan.path)
    task.outlets = [outlet for outlet in task.outlets if outlet != asset]
    if completed is None or not plan.windows or not plan.is_whole:
        return
    try:
        event = context["outlet_events"][Asset.ref(uri=asset.uri)]
    except AirflowRuntimeError as error:
        if error.error.error is not ErrorType.ASSET_NOT_FOUND:
            raise
        return
    # All events of an asset have one extra, which would repeat the manifests for each window.
    event.extra.update(encode(replace(completed, manifests=())))
    starts = [window.start.astimezone(timezone.utc) for window in plan.windows]
    event.add_partitions([start.replace(tzinfo=None).isoformat() for start in starts])
    task.outlets = [*task.outlets, event.key.to_asset()]
