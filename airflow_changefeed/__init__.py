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
    from airflow_changefeed.consumers.begin import create_consumer
    from airflow_changefeed.consumers.consumer import Consumer
    from airflow_changefeed.consumers.events.batch import Batch
    from airflow_changefeed.consumers.events.event import FeedEvent
    from airflow_changefeed.consumers.handlers.attempt import Backoff
    from airflow_changefeed.consumers.handlers.run import run_consumer
    from airflow_changefeed.core.capture import CaptureSpec, KeyChange, OnDdl, TableCapture
    from airflow_changefeed.core.consumer import ConsumerSpec, DeadLetterState, OnPoison
    from airflow_changefeed.core.feed import FeedKind, FeedStorage
    from airflow_changefeed.core.plan import ExportOptions
    from airflow_changefeed.core.ulid import Ulid, UlidRange
    from airflow_changefeed.core.window import Window
    from airflow_changefeed.export.completed import CompletedExport
    from airflow_changefeed.hooks.changefeed import ChangefeedHook
    from airflow_changefeed.hooks.changefeed_context import window_params
    from airflow_changefeed.notifications.changefeed_freshness import ChangefeedFreshnessNotifier
    from airflow_changefeed.operators.changefeed import ChangefeedCleanOperator, ChangefeedVerifyOperator
    from airflow_changefeed.operators.changefeed_consume import ChangefeedConsumeOperator
    from airflow_changefeed.operators.changefeed_fold import ChangefeedFoldOperator
    from airflow_changefeed.operators.changefeed_freshness import (
        ChangefeedFreshnessBranchOperator,
        ChangefeedFreshnessOperator,
    )
    from airflow_changefeed.operators.changefeed_merge import ChangefeedMergeOperator
    from airflow_changefeed.operators.changefeed_reconcile import ChangefeedReconcileOperator
    from airflow_changefeed.operators.changefeed_snapshot import ChangefeedSnapshotOperator
    from airflow_changefeed.output.dataset import export_dataset
    from airflow_changefeed.sensors.changefeed import ChangefeedSensor
    from airflow_changefeed.sources import open_source
    from airflow_changefeed.sources.base_control import held_reason
    from airflow_changefeed.spark.datasource import ChangefeedDataSource
    from airflow_changefeed.spark.folds.fold import fold
    from airflow_changefeed.spark.read import read_export
    from airflow_changefeed.transfers.changefeed_group import ExportJob, changefeed_export_group
    from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedToParquetOperator
    from airflow_changefeed.verify.verify import verify_export

_MODULES = {
    "AsyncConsumer": "consumers.aio",
    "Batch": "consumers.events.batch",
    "Backoff": "consumers.handlers.attempt",
    "CaptureSpec": "core.capture",
    "ChangefeedCleanOperator": "operators.changefeed",
    "ChangefeedConsumeOperator": "operators.changefeed_consume",
    "ChangefeedDataSource": "spark.datasource",
    "ChangefeedFoldOperator": "operators.changefeed_fold",
    "ChangefeedFreshnessBranchOperator": "operators.changefeed_freshness",
    "ChangefeedFreshnessNotifier": "notifications.changefeed_freshness",
    "ChangefeedFreshnessOperator": "operators.changefeed_freshness",
    "ChangefeedHook": "hooks.changefeed",
    "ChangefeedMergeOperator": "operators.changefeed_merge",
    "ChangefeedReconcileOperator": "operators.changefeed_reconcile",
    "ChangefeedSensor": "sensors.changefeed",
    "ChangefeedSnapshotOperator": "operators.changefeed_snapshot",
    "ChangefeedToParquetOperator": "transfers.changefeed_to_parquet",
    "ChangefeedVerifyOperator": "operators.changefeed",
    "CompletedExport": "export.completed",
    "Consumer": "consumers.consumer",
    "ConsumerSpec": "core.consumer",
    "DeadLetterState": "core.consumer",
    "ExportJob": "transfers.changefeed_group",
    "ExportOptions": "core.plan",
    "FeedEvent": "consumers.events.event",
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
    "changefeed_export_group": "transfers.changefeed_group",
    "changefeed_windows": "assets.changefeed",
    "create_consumer": "consumers.begin",
    "export_dataset": "output.dataset",
    "fold": "spark.folds.fold",
    "held_reason": "sources.base_control",
    "open_source": "sources",
    "read_export": "spark.read",
    "run_consumer": "consumers.handlers.run",
    "verify_export": "verify.verify",
    "window_params": "hooks.changefeed_context",
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
