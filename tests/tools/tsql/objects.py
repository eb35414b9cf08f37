# SPDX-License-Identifier: Apache-2.0
"""All T-SQL of the package by its files, filled for tables with plain names."""

from __future__ import annotations

from airflow_changefeed.sql.mssql import CAPTURE, INSTALL, install_script
from tests.tools.tsql.captures import CaptureCase, Captured, Column
from tests.tools.tsql.filled import filled_feed, templates_of
from tests.tools.tsql.filled_captures import filled_capture
from tests.tools.tsql.tables import Case

_OUTBOX = Case("dbo", "event", (("id", "bigint"),))
_SERIALIZED = Case(
    "dbo", "event", (("id", "bigint"),), serialized=True, ulid_column="ulid", shard_column="shard"
)
_TABLE = Captured("dbo", "captured", (Column("id", "int"),), (Column("data", "int"),))
_CAPTURE = CaptureCase("dbo", "changes", (_TABLE,))
# Made of the files of the other folders.
_MADE = ("templates", "capture_templates")


def objects() -> dict[str, str]:
    """
    Return each file's batch by its name below ``sql/mssql``, without ``.sql``.

    Fragments are in what they are part of, and what is for the agent is a script of its own.
    """
    found = {}
    for case in (_OUTBOX, _SERIALIZED, _CAPTURE.feed):
        filled = filled_feed(case)
        for template in templates_of(case):
            name = f"{template.object}.{template.type}"
            found[f"feed/{template.kind}/{name}" if template.kind else f"feed/{name}"] = filled[name]
    tables = {name.partition(".")[0]: sql for name, sql in filled_capture(_CAPTURE).items()}
    for name in CAPTURE:
        if not name.endswith(".fragment"):
            found[f"capture/{name}"] = tables[name.partition(".")[0]]
    _, *batches = install_script(_OUTBOX.installed_in)
    installed = zip(INSTALL, batches, strict=True)
    return found | {f"install/{name}": sql for name, sql in installed if name not in _MADE}
