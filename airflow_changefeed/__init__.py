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
    from airflow_changefeed.core.plan import ExportOptions
    from airflow_changefeed.core.ulid import Ulid
    from airflow_changefeed.core.window import Window
    from airflow_changefeed.hooks.changefeed import ChangefeedHook
    from airflow_changefeed.hooks.changefeed_context import window_params
    from airflow_changefeed.sensors.changefeed import ChangefeedSensor
    from airflow_changefeed.sources import open_source
    from airflow_changefeed.spark.read import read_export
    from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedToParquetOperator

_MODULES = {
    "ChangefeedHook": "hooks.changefeed",
    "ChangefeedSensor": "sensors.changefeed",
    "ChangefeedToParquetOperator": "transfers.changefeed_to_parquet",
    "ExportOptions": "core.plan",
    "Ulid": "core.ulid",
    "Window": "core.window",
    "open_source": "sources",
    "read_export": "spark.read",
    "window_params": "hooks.changefeed_context",
}

__all__ = [
    "ChangefeedHook",
    "ChangefeedSensor",
    "ChangefeedToParquetOperator",
    "ExportOptions",
    "Ulid",
    "Window",
    "__version__",
    "open_source",
    "read_export",
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
