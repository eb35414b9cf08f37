# SPDX-License-Identifier: Apache-2.0
"""
Whose output a folder is: each feed's, of one database, is claimed by a document, and none lies inside
another's.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from airflow_changefeed.core.documents import Document
from airflow_changefeed.exceptions import ForeignOutputError, ManifestError
from airflow_changefeed.output.layout import Layout, unquote_feed
from airflow_changefeed.storage.files import CONTROL, Files

_ANCESTORS = 16


@dataclass(frozen=True)
class Claim(Document):
    """
    Whose output a folder is.

    :param table: of the capture ``feed``, whose states it holds; empty for the feed's export.
    :param database: identity of the feed's; empty where it is not known.
    """

    KIND = "changefeed output"
    ERROR = ManifestError

    feed: str
    table: str = ""
    database: str = ""


def check(files: Files, layout: Layout, database: str, table_of: str = "") -> None:
    """
    Check that an output can be a feed's, or hold the states of a captured table.

    :param database: identity of the feed's; empty where it is not known.
    :param table_of: the capture, where the layout is a table's; empty for a feed's.
    :raises ForeignOutputError: it is another feed's or another database's, lies inside another output, or
        holds files that no export made.
    """
    _check_ancestors(files, layout)
    content = files.read(layout.claim)
    if content is None:
        if files.names(layout.data):
            raise ForeignOutputError(
                f"{layout.data} holds files that are not from an export ({layout.claim} is missing): give "
                f"the export of feed {layout.feed!r} another path",
                path=layout.path,
            )
        return
    _check_claim(content, layout, database, table_of)


def _check_claim(content: bytes, layout: Layout, database: str, table_of: str) -> None:
    claimed, wanted = _load(content, layout), _claim(layout, database, table_of)
    if (claimed.feed, claimed.table) != (wanted.feed, wanted.table):
        what = f"the table {claimed.table!r}, folded from" if claimed.table else "the export of"
        ours = f"the table {layout.feed!r}, folded from" if table_of else "the export of"
        raise ForeignOutputError(
            f"{layout.data} holds {what} feed {claimed.feed!r}, not {ours} "
            f"{table_of or layout.feed!r}: give one another path",
            path=layout.path,
            feed=claimed.feed,
        )
    check_same(layout.data, claimed.database, database, table_of or layout.feed)


def check_same(where: str, theirs: str, ours: str, feed: str) -> None:
    """
    Check that what was written comes from a database; what older versions wrote does not say from which.

    :param theirs, ours: identities; empty where it is not known.
    :raises ForeignOutputError: it comes from another one.
    """
    if theirs and ours and theirs != ours:
        raise ForeignOutputError(
            f"{where} holds feed {feed!r} of database {theirs}, and this is feed {feed!r} of database "
            f"{ours}: their events must not be mixed. Check the connection, or give this database's export "
            "another path (docs/how-to/recover.md)",
            feed=feed,
            database=theirs,
        )


def owner(files: Files, layout: Layout) -> str:
    """Return the identity of the database whose output it is; empty if the claim does not name it."""
    content = files.read(layout.claim)
    return _load(content, layout).database if content is not None else ""


def tables(files: Files, feed: str) -> list[str]:
    """Return the tables whose states, folded from a feed, lie below a root."""
    found = []
    for name in files.names(f"{files.root}/{CONTROL}"):
        layout = Layout(files.root, unquote_feed(name))
        # A damaged one of another feed is not our concern.
        with contextlib.suppress(ManifestError):
            content = files.read(layout.claim)
            claim = _load(content, layout) if content is not None else None
            if claim is not None and claim.table and claim.feed == feed:
                found.append(claim.table)
    return found


def _load(content: bytes, layout: Layout) -> Claim:
    return Claim.from_json(content.decode(errors="replace"), where=layout.claim)


def _claim(layout: Layout, database: str, table_of: str) -> Claim:
    return Claim(table_of, layout.feed, database) if table_of else Claim(layout.feed, database=database)


def _check_ancestors(files: Files, layout: Layout) -> None:
    """
    Refuse a root that lies in the folders of another output: its readers would see our files as theirs.

    On an object store the path alone is judged: rights may end at the root, and what is above is not ours.
    """
    parts = layout.path.split("/")
    for depth in range(len(parts) - 1, max(len(parts) - 1 - _ANCESTORS, 0), -1):
        parent, name = "/".join(parts[:depth]), parts[depth]
        is_inside = files.moves_folders and name and files.exists(f"{parent}/{CONTROL}/{name}/feed.json")
        if name == CONTROL or is_inside:
            owner = "an export" if name == CONTROL else f"the export of feed {unquote_feed(name)!r}"
            raise ForeignOutputError(
                f"{layout.path} lies inside {parent}/{name}, which {owner} below {parent} uses: give the "
                f"export of feed {layout.feed!r} another path",
                path=layout.path,
            )


def write(files: Files, layout: Layout, database: str, table_of: str = "") -> None:
    """
    Claim an output that was checked, and complete a claim that names no database; harmless to repeat.

    :raises ForeignOutputError: somebody else claimed it at the same moment.
    """
    content = files.read(layout.claim)
    if content is None or (database and not _load(content, layout).database):
        text = _claim(layout, database, table_of).to_json()
        files.write(layout.claim, text.encode())
        # If two found the path free, the last one to write owns it. The other one notices here, or at its
        # commit if it reads too early.
        _check_claim(files.read(layout.claim) or text.encode(), layout, database, table_of)
