# SPDX-License-Identifier: Apache-2.0
"""Who may use which of our objects, to say in an error what a DBA has to grant."""

from __future__ import annotations

import re

from airflow_changefeed.sources.mssql.install.objects import granted
from airflow_changefeed.sources.mssql.names import quote
from airflow_changefeed.sql.mssql import FEED, INSTALL

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
        which = "each capture's" if name.startswith("readable_capture") else "every"
        role = f"{which} role {schema}.{roles[0]}:…"
        return f"{role} has this right; ask a DBA to make the login's user a member of one"
    if f"{name}.procedure" in INSTALL:
        return "this needs the right to create tables, procedures and roles; ask a DBA to do it"
    if feed or not right:
        return _ANY_ROLE
    return (
        "none of changefeed's roles has a right on this object, except readers of a capture on its event "
        f"table; ask a DBA for: grant {right} on {quote(schema)}.{quote(name)} to [the login's user]"
    )
