# SPDX-License-Identifier: Apache-2.0
"""An export as an Airflow asset: its complete windows are the asset's events."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.sdk import Asset, AssetAlias

from airflow_changefeed.core.codec import encode
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.output.layout import Layout
from airflow_changefeed.version_compat import AIRFLOW_V_3_2_PLUS

if TYPE_CHECKING:
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
    :raises InvalidArgumentError: one of them is missing.
    """
    missing = [name for name, value in (("feed", feed), ("path", path)) if not (value and value.strip())]
    InvalidArgumentError.collect("changefeed_asset", [f"{name} is missing" for name in missing])
    # Airflow truncates a URI at these, which can be part of a path here; with MySQL it accepts only ASCII.
    root = _NO_PATH.sub(lambda match: quote(match[0]), _root(path))
    return Asset(uri=Layout(root, feed).data)


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
    if asset in outlets:
        events[asset].extra.update(encode(completed))
    else:
        extra = encode(completed)
        if not AIRFLOW_V_3_2_PLUS:
            # Airflow 3.0 makes a set of the values of an alias's event, and fails the task if it cannot.
            extra = {
                name: json.dumps(value) if isinstance(value, (list, dict)) else value
                for name, value in extra.items()
            }
        events[export_alias()].add(asset, extra=extra)
