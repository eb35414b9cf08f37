# SPDX-License-Identifier: Apache-2.0
"""Checks of the Airflow Variables that publish cursors."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Protocol

from airflow_changefeed.core.cursor import (
    CursorDocument,
    CursorRow,
    variable_key,
    variable_prefix,
)
from airflow_changefeed.core.fault import Fault, FaultKind, shell
from airflow_changefeed.core.feed import counted
from airflow_changefeed.cursors.cursors import VariableStore, compare, rebuild_command
from airflow_changefeed.cursors.remedies import recovery_commands
from airflow_changefeed.exceptions import (
    CursorEditedError,
    CursorFormatError,
    FeedNotFoundError,
    UnsupportedVersionError,
)
from airflow_changefeed.sources.base import FeedSource


class VariableLister(VariableStore, Protocol):
    """Airflow's Variables, with a list of them."""

    def keys(self, prefix: str) -> list[str]:
        """Return the names of the Variables that begin with a prefix."""


def variable_faults(
    source: FeedSource,
    variables: VariableLister,
    feed: str,
    rows: Sequence[CursorRow],
    consumer: str | None,
    without: Collection[str] = (),
) -> list[Fault]:
    """
    Check the Variables of a feed's exports, including exports without rows.

    :param without: consumers that publish nothing.
    """
    consumers = dict.fromkeys(row.consumer for row in rows)
    if consumer is not None:
        consumers[consumer] = None
    else:
        database = source.identity().id
        consumers |= dict.fromkeys(name for name, of in published(variables, database).values() if of == feed)
    faults = []
    for each in (name for name in consumers if name not in without):
        fault = _variable(source, variables, feed, each)
        faults += [fault] if fault is not None else []
    return faults


def unknown_feeds(source: FeedSource, variables: VariableLister, feeds: Collection[str]) -> list[Fault]:
    """Find Variables of this database without a feed; those of other databases are not checked."""
    try:
        database = source.identity().id
    except FeedNotFoundError:
        return []
    return [
        Fault(
            FaultKind.VARIABLE_OF_NO_FEED,
            f"Variable {key}",
            f"it belongs to consumer {consumer!r} of feed {feed!r}, which is not in this database",
            "Delete it if the feed was dropped for good",
        )
        for key, (consumer, feed) in published(variables, database).items()
        if feed not in feeds
    ]


def published(variables: VariableLister, database: str) -> dict[str, tuple[str, str]]:
    """Return the consumer and feed of each Variable of a database, if they can be determined."""
    prefix, found = variable_prefix(database), {}
    for key in variables.keys(prefix):
        consumer, _, feed = key.removeprefix(prefix).partition(":")
        named = _names_in(variables.get(key))
        # An edit may have put another consumer in the value. The key has the names, unless it is a hash.
        for each in (named, (consumer, feed)):
            if all(each) and variable_key(database, *each) == key:
                found[key] = each
                break
    return found


def _names_in(text: str | None) -> tuple[str, str]:
    """Return the consumer and feed in a Variable's value; empty if there are none."""
    try:
        content = json.loads(text or "")
        return str(content["consumer"]), str(content["feed"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", ""


def _variable(source: FeedSource, variables: VariableLister, feed: str, consumer: str) -> Fault | None:
    key = variable_key(source.identity().id, consumer, feed)
    where = f"Variable {key}"
    _, publish = recovery_commands(consumer, feed)
    try:
        _, is_current = compare(source, variables, consumer, feed)
    except CursorEditedError as problem:
        return _edited(source, variables, feed, consumer, problem)
    except (CursorFormatError, UnsupportedVersionError) as problem:
        remedy = f"Overwrite it with the cursors in the database: {publish}"
        if isinstance(problem, UnsupportedVersionError):
            remedy = "Upgrade this package"
        # Without the commands, which are in the remedy.
        what = problem.facts.get("reason", problem.message)
        return Fault(FaultKind.VARIABLE_UNREADABLE, where, what, remedy)
    if is_current:
        return None
    remedy = f"Nothing to do: the next run of the export publishes it. To publish it now: {publish}"
    if variables.get(key) is None:
        what = "it does not exist, but the database has cursors of this consumer"
        return Fault(FaultKind.VARIABLE_MISSING, where, what, remedy)
    return Fault(FaultKind.VARIABLE_BEHIND, where, "it is older than the cursors in the database", remedy)


def _edited(
    source: FeedSource, variables: VariableLister, feed: str, consumer: str, problem: CursorEditedError
) -> Fault:
    key = problem.facts["key"]
    if source.cursors(feed, consumer):
        what = "; ".join(problem.facts["problems"])
        remedy = f"No cursor moves until you decide. {problem.facts['remedy']}"
        return Fault(FaultKind.VARIABLE_EDITED, f"Variable {key}", what, remedy)
    shards = CursorDocument.from_json(variables.get(key) or "", key=key).shards
    return Fault(
        FaultKind.VARIABLE_ORPHANED,
        f"Variable {key}",
        f"it has cursors of {counted(len(shards), 'shard')}, but the database has none of consumer "
        f"{consumer!r}",
        "If the consumer was dropped, delete the Variable. If its rows are lost, restore them from the "
        f"Variable ({shell('cursor adopt', consumer, '--feed', feed)}) or from the manifests "
        f"({rebuild_command(consumer, feed)})",
    )
