# SPDX-License-Identifier: Apache-2.0
"""Compares an export's Variable with its cursors in the database, for people to see."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from airflow_changefeed.core.cursor import variable_key
from airflow_changefeed.cursors.cursors import VariableStore, compare
from airflow_changefeed.exceptions import CursorEditedError, CursorFormatError, UnsupportedVersionError
from airflow_changefeed.sources.base import FeedSource


class VariableKind(str, Enum):
    """
    State of a Variable compared with the rows.

    ``EQUAL``: the same. ``MISSING``, ``OLDER``: the next run publishes it again. ``EDITED``: nothing moves
    until a person adopts or publishes. ``UNREADABLE``: it is not a cursor; nothing moves until a person
    publishes. ``NEWER``: a newer version of this package wrote it.
    """

    EQUAL = "equal"
    MISSING = "missing"
    OLDER = "older"
    EDITED = "edited"
    UNREADABLE = "unreadable"
    NEWER = "newer"


@dataclass(frozen=True)
class VariableState:
    """
    A Variable and how it compares with the rows.

    :param problem: what a person must decide, with both values and the commands; None if nothing.
    """

    key: str
    kind: VariableKind
    problem: str | None = None


def variable_state(source: FeedSource, variables: VariableStore, consumer: str, feed: str) -> VariableState:
    """
    Compare an export's Variable with its rows; changes neither.

    :raises SourceUnavailableError: Airflow or the database did not answer.
    """
    key = variable_key(source.identity().id, consumer, feed)
    try:
        _, is_current = compare(source, variables, consumer, feed)
    except CursorEditedError as problem:
        # The Variable of an old version has another key.
        return VariableState(problem.facts["key"], VariableKind.EDITED, problem.message)
    except CursorFormatError as problem:
        return VariableState(key, VariableKind.UNREADABLE, problem.message)
    except UnsupportedVersionError as problem:
        return VariableState(key, VariableKind.NEWER, problem.message)
    if is_current:
        return VariableState(key, VariableKind.EQUAL)
    is_missing = variables.get(key) is None
    return VariableState(key, VariableKind.MISSING if is_missing else VariableKind.OLDER)
