# SPDX-License-Identifier: Apache-2.0
"""What an installation and a feed consist of, and what each role may do with it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from airflow_changefeed.core.feed import FeedKind
from airflow_changefeed.sources.mssql.names import quote
from airflow_changefeed.sql import load_sql
from airflow_changefeed.sql.mssql import INSTALL, capture_templates, feed_templates, install_tokens

#: Made by a batch of ``install/``.
_MADE = re.compile(r"create (table|sequence) <<schema>>\.\[(\w+)\]")
#: The procedure that a capture has once, whatever its tables.
_OF_ALL_TABLES = "capture_table"
_GRANT = re.compile(
    r"^grant (\w+) on <<schema>>\.\[(\w+)(:<<name>>)?\] to \[<<schema_name>>\.(\w+)(?::<<name>>)?\];",
    re.MULTILINE,
)
#: Members of every feed's roles. What is granted to it also asks for the right to read the feed.
_USERS = "users"


@dataclass(frozen=True)
class Right:
    """
    What a role may do with an object of a feed.

    :param object: its name before the colon.
    :param is_feed: whether the object is the feed's; else the installation's.
    """

    permission: str
    object: str
    is_feed: bool
    role: str

    def full(self, schema: str, feed: str) -> str:
        """Return the object's quoted name."""
        name = f"{self.object}:{feed}" if self.is_feed else self.object
        return f"{quote(schema)}.{quote(name)}"


def rights(role: str, *, is_capture: bool = False) -> list[Right]:
    """
    Return what a role may do: as it is granted, operators being readers.

    :param is_capture: whether the feed is a capture's, whose roles may do more.
    """
    wanted = ("readers",) if role == "readers" else ("readers", "operators")
    files = ["install/grants", "feed/grants", *(["feed/capture/capture_grants"] if is_capture else [])]
    return [right for file in files for right in granted(f"{file}.batch") if right.role in wanted]


@cache
def granted(file: str) -> tuple[Right, ...]:
    """Return what a file of ``install/`` or ``feed/`` grants to the roles of feeds."""
    found = _GRANT.findall(load_sql(f"mssql/{file}.sql"))
    return tuple(
        Right(right.upper(), name, bool(feed), "readers" if role == _USERS else role)
        for right, name, feed, role in found
    )


def installed_objects() -> dict[str, str]:
    """Return the objects of an installation: name to type."""
    found: dict[str, str] = {}
    for file in INSTALL:
        name, _, kind = file.partition(".")
        if kind == "batch":
            found |= {made: type_ for type_, made in _MADE.findall(load_sql(f"mssql/install/{file}.sql"))}
        else:
            # Those without a kind are the functions that return templates.
            found[name] = kind or "function"
    return found


def feed_roles(schema: str, feed: str) -> list[str]:
    """Return the roles of a feed."""
    prefix = install_tokens(schema)["role_prefix_text"].replace("''", "'")
    return [
        *(f"{schema}.{role}:{feed}" for role in ("readers", "writers", "operators")),
        f"{prefix}role:{feed}",
    ]


def feed_objects(feed: str, kind: FeedKind, *, is_capture: bool = False) -> dict[str, str]:
    """Return the objects of a feed: name to type."""
    kinds = (None, kind.value, *(("capture",) if is_capture else ()))
    return {
        # A template of a type is named without what the type's own name begins with.
        f"{'type:' if template.type == 'type' else ''}{template.object}:{feed}": template.type
        for template in feed_templates()
        if template.kind in kinds and template.type != "batch"
    }


def capture_objects(capture: str, tables: Iterable[int]) -> dict[str, str]:
    """
    Return the procedures that a capture has for each of its tables: name to type.

    :param tables: their numbers.
    """
    procedures = [template.object for template in capture_templates() if template.type == "procedure"]
    return {
        f"{name}{'' if name == _OF_ALL_TABLES else f'.{number}'}:{capture}": "procedure"
        for number in tables
        for name in procedures
    }
