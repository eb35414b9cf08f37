# SPDX-License-Identifier: Apache-2.0
"""Who may use which of our objects, to say in an error what a DBA has to grant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from airflow_changefeed.sources.mssql.names import quote

_READERS = (
    *("read_feed", "poll_feed", "shards", "shard_bounds", "count_feed", "split_feed", "stale_marks"),
    "inspect_outbox",
    *("next_attempt", "cursors", "begin_consumer", "take_lease", "release_lease", "move_cursor"),
    *("drop_consumer", "feed"),
    *(
        "create_consumer",
        "consumer_settings",
        "request_leases",
        "renew_leases",
        "leave",
        "leases",
    ),
    *("consume_events", "log_attempt", "invocations", "purge_invocations"),
    *("dead_letters", "resolve_dead_letter", "park_again"),
    *("history", "overview", "revoke_lease", "change_consumer"),
)
#: The role that has the right, by what stands before the feed in an object's name.
ROLES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(_READERS, "readers"),
        **dict.fromkeys(("outbox", "lock", "lock_feed"), "writers"),
        **dict.fromkeys(("drain_feed", "seal_feed", "purge_feed", "insert_history"), "operators"),
        **dict.fromkeys(("check_capture", "compare_capture", "resolve_capture"), "operators"),
    }
)
#: What every role of some kind has, whatever the feed.
_SHARED = MappingProxyType({"feeds": "readers", "sequence": "writers"})
#: What every reader of some capture has.
_OF_CAPTURES = frozenset(
    f"readable_{name}" for name in ("captures", "capture_tables", "capture_columns", "capture_gaps")
)
#: What only those may do who install changefeed and set up feeds.
_SETUP = frozenset(
    {
        *("setup_feed", "upgrade_feed", "upgrade_feeds", "set_up", "drop_feed"),
        *("enable_capture", "refresh_capture", "disable_capture"),
    }
)
_DENIED = re.compile(
    r"The (?P<right>[A-Z][A-Z ]*) permission was denied on the (?:column '.*?' of the )?"
    r"object '(?P<object>.*?)['\"](?:, database '(?P<database>.*?)')?, schema '(?P<schema>.*?)'",
    re.DOTALL,
)
#: As servers say it that only speak the protocol.
_DENIED_ELSEWHERE = re.compile(r"permission denied for \w+ (?P<object>\S.*)", re.DOTALL)
_ANY_ROLE = (
    "ask a DBA to make the login's user a member of the feed's role (changefeed.readers:…, "
    "changefeed.writers:… or changefeed.operators:…)"
)


def remedy(text: str) -> str:
    """
    Say what to ask a DBA for.

    :param text: SQL Server's, of a permission that was denied.
    """
    found = _DENIED.search(text)
    if found is None:
        other = _DENIED_ELSEWHERE.search(text)
        return _of_object("changefeed", other["object"].strip("'\"."), "") if other else _ANY_ROLE
    return _of_object(found["schema"], found["object"], found["right"].lower())


def _of_object(schema: str, name: str, right: str) -> str:
    kind, _, feed = name.partition(":")
    if feed and kind in ROLES:
        role = quote(f"{schema}.{ROLES[kind]}:{feed}")
        return f"role {role} has this right; ask a DBA for: alter role {role} add member [the login's user]"
    if name in _SHARED:
        role = f"{schema}.{_SHARED[name]}:…"
        return f"every role {role} has this right; ask a DBA to make the login's user a member of one"
    if name in _OF_CAPTURES:
        role = f"{schema}.readers:…"
        return (
            f"each capture's role {role} has this right; ask a DBA to make the login's user a member of one"
        )
    if name in _SETUP:
        return "this needs the right to create tables, procedures and roles: let a DBA do it"
    if feed or not right:
        return _ANY_ROLE
    return (
        "of changefeed's roles none has a right to this object, except the readers of a capture to the table "
        "of its events; ask a DBA for: "
        f"grant {right} on {quote(schema)}.{quote(name)} to [the login's user]"
    )
