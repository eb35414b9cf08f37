# SPDX-License-Identifier: Apache-2.0
"""What an installation and a feed consist of, and which role may do what: to say what a DBA has to grant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from airflow_changefeed.core.feed import FeedKind
from airflow_changefeed.sources.mssql.names import quote
from airflow_changefeed.sql import load_sql
from airflow_changefeed.sql.mssql import FEED, INSTALL, capture_templates, feed_templates, install_tokens

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
    files = ["install/grants.batch", *(f"feed/{file}" for file in FEED if file.endswith("grants.batch"))]
    grants = [grant for file in files for grant in granted(file)]
    roles = [grant.role for grant in grants if (grant.object, grant.is_feed) == (kind, bool(feed))]
    if roles and feed:
        role = quote(f"{schema}.{roles[0]}:{feed}")
        return f"role {role} has this right; ask a DBA for: alter role {role} add member [the login's user]"
    if roles:
        role = f"every role {schema}.{roles[0]}:…"
        return f"{role} has this right; ask a DBA to make the login's user a member of one"
    if f"{name}.procedure" in INSTALL:
        return "this needs the right to create tables, procedures and roles; ask a DBA to do it"
    if feed or not right:
        return _ANY_ROLE
    return (
        "none of changefeed's roles has a right on this object, except readers of a capture on its event "
        f"table; ask a DBA for: grant {right} on {quote(schema)}.{quote(name)} to [the login's user]"
    )
