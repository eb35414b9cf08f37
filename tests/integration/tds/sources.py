# SPDX-License-Identifier: Apache-2.0
"""Sources whose driver talks to an endpoint of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sources.mssql.connection.pool import RetryPolicy
from tests.integration.tds.endpoint import Refusal

#: As often as ever, without the pauses.
AT_ONCE = RetryPolicy(first_pause=0.0, longest_pause=0.0)
PASSWORD = "hunter2}{;PWD=x"
BUSY = Refusal(
    40613,
    "Database 'feeds' on server 's' is not currently available.  Please retry the connection later.",
)
DEADLOCK = Refusal(
    1205,
    "Transaction (Process ID 56) was deadlocked on lock resources with another process and has been chosen "
    "as the deadlock victim. Rerun the transaction.",
)


def source_at(port: int, retry: RetryPolicy = AT_ONCE, **options: Any) -> MssqlFeedSource:
    """Describe a source at a port of this machine; nothing is connected to for it."""
    driver_options = {"login_timeout": 2, **options.pop("driver_options", {})}
    named = {"host": "127.0.0.1", "user": "me", "password": PASSWORD, "encrypt": "no", **options}
    source = MssqlFeedSource(port=port, database="feeds", driver_options=driver_options, **named)
    source.database.retry = retry
    return source


def logins(seen: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the logins of what an endpoint has seen."""
    return [one for one in seen if "user" in one]


def batches(seen: Sequence[dict[str, Any]]) -> list[str]:
    """Return the batches of what an endpoint has seen, but for those that open a connection."""
    return [one["batch"] for one in seen if not one.get("batch", "set nocount").startswith("set nocount")]
