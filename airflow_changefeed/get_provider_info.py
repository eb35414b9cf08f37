# SPDX-License-Identifier: Apache-2.0
"""What Airflow asks a provider about itself."""

from __future__ import annotations

from typing import Any

from airflow_changefeed import __version__

_NAME = "Changefeed"
_PARQUET = "Apache Parquet"


def get_provider_info() -> dict[str, Any]:
    """
    Return the provider's description, for the entry point ``apache_airflow_provider``.

    No connection type of its own: feeds are reached by those of the providers ``sqlite`` and
    ``microsoft.mssql``, and a type that is registered twice takes over the other provider's form.
    """
    return {
        "package-name": "airflow-changefeed",
        "name": _NAME,
        "description": "Race-safe change feeds of SQL Server tables, exported to Parquet, Delta Lake "
        "and Iceberg through Spark, in provably complete time windows.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": _NAME,
                "external-doc-url": "https://pypi.org/project/airflow-changefeed/",
                "logo": "/docs/integration-logos/changefeed.svg",
                "how-to-guide": [
                    "/docs/tutorial/first-export.md",
                    "/docs/how-to/schedule-an-export.md",
                    "/docs/how-to/capture-changes.md",
                    "/docs/how-to/keep-a-current-table.md",
                    "/docs/how-to/when-something-is-wrong.md",
                ],
                "tags": ["software"],
            },
            {
                "integration-name": _PARQUET,
                "external-doc-url": "https://parquet.apache.org/",
                "tags": ["apache"],
            },
        ],
        "hooks": [{"integration-name": _NAME, "python-modules": ["airflow_changefeed.hooks.changefeed"]}],
        "sensors": [{"integration-name": _NAME, "python-modules": ["airflow_changefeed.sensors.changefeed"]}],
        "operators": [
            {
                "integration-name": _NAME,
                "python-modules": [
                    "airflow_changefeed.operators.changefeed",
                    "airflow_changefeed.operators.consume",
                    "airflow_changefeed.operators.fold",
                    "airflow_changefeed.operators.snapshot",
                ],
            }
        ],
        "task-decorators": [
            {
                "name": "changefeed",
                "class-name": "airflow_changefeed.decorators.changefeed.changefeed_task",
            }
        ],
        "config": {
            "changefeed": {
                "description": "The page of change feeds in Airflow's UI.",
                "options": {
                    "page_connections": {
                        "description": "Connections that the page shows in addition to those that tasks "
                        "name; ids, separated by commas.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "changefeed_default, orders_db",
                        "default": "",
                    },
                    "page_timeout": {
                        "description": "Seconds that the page waits for a database or an output, more than 0 "
                        "and at most 60.",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": None,
                        "default": "10.0",
                    },
                },
            }
        },
        "cli": ["airflow_changefeed.cli.changefeed.get_cli_commands"],
        "extra-links": [
            "airflow_changefeed.links.changefeed.CalendarLink",
            "airflow_changefeed.links.changefeed.WindowLink",
        ],
        "notifications": ["airflow_changefeed.notifications.freshness.ChangefeedFreshnessNotifier"],
        "triggers": [
            {"integration-name": _NAME, "python-modules": ["airflow_changefeed.triggers.changefeed"]}
        ],
        "transfers": [
            {
                "source-integration-name": _NAME,
                "target-integration-name": _PARQUET,
                "python-module": f"airflow_changefeed.transfers.{module}",
                "how-to-guide": f"/docs/how-to/{page}.md",
            }
            for module, page in (
                ("changefeed_to_parquet", "schedule-an-export"),
                ("group", "run-by-any-operator"),
            )
        ],
    }
