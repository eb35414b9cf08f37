# SPDX-License-Identifier: Apache-2.0
"""
Race-safe change feeds for SQL Server, exported in provably complete windows by Airflow and Spark.

The public names are loaded when they are first used: importing the package costs a DAG file nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from airflow_changefeed.assets.changefeed import changefeed_asset, changefeed_windows
    from airflow_changefeed.consumers.aio import AsyncConsumer
    from airflow_changefeed.consumers.consumer import Consumer
    from airflow_changefeed.consumers.event import Batch, FeedEvent
    from airflow_changefeed.consumers.run import Backoff, run_consumer
    from airflow_changefeed.consumers.settings import create_consumer
    from airflow_changefeed.core.capture import CaptureSpec, KeyChange, OnDdl, TableCapture
    from airflow_changefeed.core.consumer import ConsumerSpec, DeadLetterState, OnPoison
    from airflow_changefeed.core.export_plan import ExportOptions
    from airflow_changefeed.core.feed import FeedKind, FeedStorage
    from airflow_changefeed.core.ulid import Ulid, UlidRange
    from airflow_changefeed.core.window import Window
    from airflow_changefeed.export.completed import CompletedExport
    from airflow_changefeed.export.verify import verify_export
    from airflow_changefeed.hooks.changefeed import ChangefeedHook
    from airflow_changefeed.notifications.freshness import ChangefeedFreshnessNotifier
    from airflow_changefeed.operators.changefeed import (
        ChangefeedCleanOperator,
        ChangefeedFreshnessBranchOperator,
        ChangefeedFreshnessOperator,
        ChangefeedVerifyOperator,
    )
    from airflow_changefeed.operators.consume import ChangefeedConsumeOperator
    from airflow_changefeed.operators.fold import ChangefeedFoldOperator, ChangefeedMergeOperator
    from airflow_changefeed.operators.snapshot import ChangefeedReconcileOperator, ChangefeedSnapshotOperator
    from airflow_changefeed.output.dataset import export_dataset
    from airflow_changefeed.sensors.changefeed import ChangefeedSensor
    from airflow_changefeed.sources import open_source
    from airflow_changefeed.sources.base_control import held_reason
    from airflow_changefeed.spark.datasource.source import ChangefeedDataSource
    from airflow_changefeed.spark.fold import fold
    from airflow_changefeed.spark.read import read_export
    from airflow_changefeed.tasks.context import window_params
    from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedToParquetOperator
    from airflow_changefeed.transfers.group import ExportJob, changefeed_export_group

_MODULES = {
    "AsyncConsumer": "consumers.aio",
    "Batch": "consumers.event",
    "Backoff": "consumers.run",
    "CaptureSpec": "core.capture",
    "ChangefeedCleanOperator": "operators.changefeed",
    "ChangefeedConsumeOperator": "operators.consume",
    "ChangefeedDataSource": "spark.datasource.source",
    "ChangefeedFoldOperator": "operators.fold",
    "ChangefeedFreshnessBranchOperator": "operators.changefeed",
    "ChangefeedFreshnessNotifier": "notifications.freshness",
    "ChangefeedFreshnessOperator": "operators.changefeed",
    "ChangefeedHook": "hooks.changefeed",
    "ChangefeedMergeOperator": "operators.fold",
    "ChangefeedReconcileOperator": "operators.snapshot",
    "ChangefeedSensor": "sensors.changefeed",
    "ChangefeedSnapshotOperator": "operators.snapshot",
    "ChangefeedToParquetOperator": "transfers.changefeed_to_parquet",
    "ChangefeedVerifyOperator": "operators.changefeed",
    "CompletedExport": "export.completed",
    "Consumer": "consumers.consumer",
    "ConsumerSpec": "core.consumer",
    "DeadLetterState": "core.consumer",
    "ExportJob": "transfers.group",
    "ExportOptions": "core.export_plan",
    "FeedEvent": "consumers.event",
    "FeedKind": "core.feed",
    "FeedStorage": "core.feed",
    "KeyChange": "core.capture",
    "OnDdl": "core.capture",
    "OnPoison": "core.consumer",
    "TableCapture": "core.capture",
    "Ulid": "core.ulid",
    "UlidRange": "core.ulid",
    "Window": "core.window",
    "changefeed_asset": "assets.changefeed",
    "changefeed_export_group": "transfers.group",
    "changefeed_windows": "assets.changefeed",
    "create_consumer": "consumers.settings",
    "export_dataset": "output.dataset",
    "fold": "spark.fold",
    "held_reason": "sources.base_control",
    "open_source": "sources",
    "read_export": "spark.read",
    "run_consumer": "consumers.run",
    "verify_export": "export.verify",
    "window_params": "tasks.context",
}

__all__ = [
    "AsyncConsumer",
    "Backoff",
    "Batch",
    "CaptureSpec",
    "ChangefeedCleanOperator",
    "ChangefeedConsumeOperator",
    "ChangefeedDataSource",
    "ChangefeedFoldOperator",
    "ChangefeedFreshnessBranchOperator",
    "ChangefeedFreshnessNotifier",
    "ChangefeedFreshnessOperator",
    "ChangefeedHook",
    "ChangefeedMergeOperator",
    "ChangefeedReconcileOperator",
    "ChangefeedSensor",
    "ChangefeedSnapshotOperator",
    "ChangefeedToParquetOperator",
    "ChangefeedVerifyOperator",
    "CompletedExport",
    "Consumer",
    "ConsumerSpec",
    "DeadLetterState",
    "ExportJob",
    "ExportOptions",
    "FeedEvent",
    "FeedKind",
    "FeedStorage",
    "KeyChange",
    "OnDdl",
    "OnPoison",
    "TableCapture",
    "Ulid",
    "UlidRange",
    "Window",
    "__version__",
    "changefeed_asset",
    "changefeed_export_group",
    "changefeed_windows",
    "create_consumer",
    "export_dataset",
    "fold",
    "held_reason",
    "open_source",
    "read_export",
    "run_consumer",
    "verify_export",
    "window_params",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
