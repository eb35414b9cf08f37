# SPDX-License-Identifier: Apache-2.0
"""
Transactions of writers to captured tables, in SQLite, which does not number transactions.

There is a single writer and events are numbered when recorded, so a transaction's events are all those
between the last number before it and the last one at its commit. This is stored once, at the end, so events
of a transaction without it are never attributed to another.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from airflow_changefeed.sources.sqlite.capture.registry import REGISTRY
from airflow_changefeed.sources.sqlite.feed.names import quote


def event_numbers(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the number of the last event of each capture that has any."""
    installed = connection.execute("select 1 from sqlite_master where name = ?", (REGISTRY,)).fetchone()
    if not installed:
        return {}
    return dict(
        connection.execute(
            f'select name, seq from sqlite_sequence where name in (select name from "{REGISTRY}")'
        ).fetchall()
    )


def number_events(
    connection: sqlite3.Connection, before: Mapping[str, int], variables: Mapping[str, str]
) -> int | None:
    """
    Store which events the current transaction recorded, before it commits.

    :param before: what :func:`event_numbers` gave when it began.
    :param variables: the session's.
    :return: the transaction's number; None where it recorded nothing.
    """
    now = event_numbers(connection)
    changed = [name for name, last in now.items() if last > before.get(name, 0)]
    if not changed:
        return None
    tid = next_number(connection)
    for name in changed:
        number_range(connection, name, before.get(name, 0) + 1, now[name], tid)
        if variables:
            _store_context(connection, name, tid, now[name], variables)
    return tid


def next_number(connection: sqlite3.Connection) -> int:
    """Draw the number of a transaction; none is given twice."""
    row = connection.execute(
        'insert into "changefeed.transaction_number" (only, last) values (0, 1) '
        "on conflict (only) do update set last = last + 1 returning last"
    ).fetchone()
    return int(row[0])


def number_range(connection: sqlite3.Connection, capture: str, first: int, last: int, tid: int) -> None:
    """Write down that the events of a range, inclusive, are a transaction's."""
    # The clock may have been set back meanwhile; a transaction that was rolled back in part has gaps.
    connection.execute(
        'insert into "changefeed.transaction" (capture, last_event, first_event, tid, time_ms) '
        f"select ?1, ?3, ?2, ?4, coalesce(max(changefeed_at), 0) from {quote(capture)} "
        "where changefeed_event in (?2, ?3)",
        (capture, first, last, tid),
    )


def _store_context(
    connection: sqlite3.Connection, capture: str, tid: int, last: int, variables: Mapping[str, str]
) -> None:
    """Write down what a capture has chosen of a session's variables."""
    # Without the rest of the spec, which each transaction would read in vain.
    keys, trace_key = connection.execute(
        "select json_extract(spec, '$.session_keys'), json_extract(spec, '$.trace_key') "
        f'from "{REGISTRY}" where name = ?',
        (capture,),
    ).fetchone()
    chosen = {key: variables[key] for key in json.loads(keys) if key in variables}
    trace = variables.get(trace_key) if trace_key else None
    if chosen or trace is not None:
        connection.execute(
            'insert into "changefeed.context" (capture, tid, last_event, session, trace) '
            "values (?, ?, ?, ?, ?)",
            (capture, tid, last, json.dumps(chosen, ensure_ascii=False) if chosen else None, trace),
        )
