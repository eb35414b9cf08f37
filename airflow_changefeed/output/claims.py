# SPDX-License-Identifier: Apache-2.0
"""
Whose output a folder is: each feed's, of one database, is claimed by a document, and none lies inside
another's.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from airflow_changefeed.core.codec import Document
from airflow_changefeed.core.export_plan import BATCH, DELTA, ICEBERG, PARQUET, WINDOW, Manifest
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import unquote_name
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import ForeignOutputError, InvalidArgumentError, ManifestError, OutputError
from airflow_changefeed.output.layout import DELTA_LOG, ICEBERG_FILES, Layout
from airflow_changefeed.storage.files import Files, open_files
from airflow_changefeed.storage.local import CONTROL

log = logging.getLogger(__name__)

_ANCESTORS = 16

Kind = TypeVar("Kind", bound=Document)


class Owned(Protocol):
    """A document of an output; those of a captured table name the table, too."""

    @property
    def feed(self) -> str:
        """The feed that it is about."""

    @property
    def database(self) -> str:
        """The identity of the feed's database."""


#: What to do about a claim that cannot be read.
DAMAGED = "Restore or remove the document; the next export writes it again, from the manifests"


@dataclass(frozen=True)
class Claim(Document):
    """
    Whose output a folder is.

    :param database: identity of the feed's; empty where the manifests of a lost claim do not say it.
    :param table: of the capture ``feed``, whose states it holds; empty for the feed's export.
    :param table_format: of the lake's table that has the files of the export; ``parquet`` for none.
    :param catalog_table: its name in a catalog.
    :param mode: whether the export is of windows or of batches; empty for a table's states.
    :param unit: length of the export's windows, which are at multiples of it, counted from 1970 UTC; None
        where its first export gave none: then each manifest has the length of its window.
    """

    KIND = "changefeed output"
    ERROR = ManifestError

    feed: str
    database: str
    table: str = ""
    table_format: str = PARQUET
    catalog_table: str = ""
    mode: str = ""
    unit: timedelta | None = None

    @property
    def lake(self) -> str:
        """The format, and the table's name in a catalog, as people read it."""
        return f"{self.table_format} {self.catalog_table}".rstrip()


class Output:
    """
    What lies below a path for one feed's export, or for one table of a capture: where, and its documents.

    :param path: of the root, local or an fsspec URL; other feeds' and tables' may share it.
    :param feed: the feed, or the capture of the table.
    :param name: of the feed, or of the table: of its folders.
    :param storage_options: for fsspec; may contain secrets.
    """

    def __init__(
        self,
        path: str,
        feed: str,
        name: str,
        storage_options: Mapping[str, Any] | None = None,
        files: Files | None = None,
    ) -> None:
        self.feed = feed
        self.files = files or open_files(path, storage_options)
        self.layout = Layout(self.files.root, name)

    def read_document(self, path: str, kind: type[Kind], where: str = "") -> Kind | None:
        """Read a document; None if it is not there. ``where`` names it in its ``ERROR`` if it is damaged."""
        content = self.files.read(path)
        if content is None:
            return None
        return kind.from_json(content.decode(errors="replace"), named=where or path)

    def write_document(self, path: str, document: Document) -> None:
        """Write a document; it appears whole."""
        self.files.write(path, document.to_json().encode())


def check(
    files: Files,
    layout: Layout,
    wanted: Claim,
    documents: Callable[[], Iterable[Owned]] = tuple,
    windows: Sequence[Window] = (),
) -> None:
    """
    Check that an output can be claimed. Where its claim is lost, the other documents say whose it is.

    :param layout: of the feed, or of the captured table whose states it will hold.
    :param documents: reads them.
    :param windows: that are to be exported.
    :raises ForeignOutputError: it is another feed's or another database's, lies inside another output, or
        holds files that no export made.
    :raises OutputError: it is the feed's in another format, or of batches instead of windows, or of windows
        of another unit.
    """
    _check_ancestors(files, layout)
    # Where it is a link, before anything is sealed and written.
    files.url(layout.data)
    claimed = read(files, layout)
    if claimed is not None:
        if claimed.table and not files.names(layout.data):
            # It has snapshots only, which lie elsewhere.
            claimed = replace(claimed, table_format=wanted.table_format, catalog_table=wanted.catalog_table)
        check_claim(claimed, layout, wanted, windows)
    elif names := files.names(layout.data):
        found = format_of(names)
        # What the table is called in a catalog only the claim has said.
        catalog_table = wanted.catalog_table if found == wanted.table_format else ""
        owners = {(each.feed, each.database, getattr(each, "table", ""), _mode(each)) for each in documents()}
        if not owners:
            raise ForeignOutputError(
                f"{layout.data} holds files, but {layout.claim} is missing, and no other document names "
                f"their owner: restore that file, or give feed {wanted.feed!r} another path",
                path=layout.path,
            )
        for feed, database, table, mode in owners:
            check_claim(Claim(feed, database, table, found, catalog_table, mode), layout, wanted)


def _mode(document: Owned) -> str:
    """Return the mode of an export by one of its manifests; empty for other documents."""
    if not isinstance(document, Manifest):
        return ""
    return BATCH if document.unit.window is None else WINDOW


def format_of(names: Collection[str]) -> str:
    """Return the format of an output by the names in its folder of data, where no claim says it."""
    return DELTA if DELTA_LOG in names else ICEBERG if ICEBERG_FILES in names else PARQUET


def check_claim(claimed: Claim, layout: Layout, wanted: Claim, windows: Sequence[Window] = ()) -> None:
    """Check that a claim is one's own, and fits windows that are to be exported; raises as :func:`check`."""
    if (claimed.feed, claimed.table) != (wanted.feed, wanted.table):
        raise ForeignOutputError(
            f"{layout.data} holds {_what(claimed)} feed {claimed.feed!r}, not {_what(wanted)} "
            f"{wanted.feed!r}: give one of them another path",
            path=layout.path,
            feed=claimed.feed,
        )
    check_same(layout.data, claimed.database, wanted.database, wanted.feed)
    if claimed.lake != wanted.lake:
        if wanted.table:
            raise OutputError(
                f"{layout.data} holds table {wanted.table!r} as {claimed.lake}, but the task writes "
                f"{wanted.lake}: an output keeps its format, so give another path",
                path=layout.path,
                feed=wanted.feed,
            )
        words = ("--feed", wanted.feed, "--path", layout.path, "--table-format", wanted.table_format)
        publish = f"; or make a table of the present units: {shell('output publish', *words)}"
        raise OutputError(
            f"{layout.data} holds the export of feed {wanted.feed!r} as {claimed.lake}, but the task "
            f"writes {wanted.lake}: an output keeps the format of its first export, so give another "
            f"path{publish if claimed.table_format == PARQUET else ''}",
            path=layout.path,
            feed=wanted.feed,
        )
    _check_cut(claimed, layout, wanted, windows)


def _check_cut(claimed: Claim, layout: Layout, wanted: Claim, windows: Sequence[Window]) -> None:
    holds = f"{layout.data} holds the export of feed {wanted.feed!r}"
    if claimed.mode != wanted.mode:
        other = "windows" if wanted.mode == BATCH else "batches"
        raise OutputError(
            f"{holds} by {other}, and {'batches' if wanted.mode == BATCH else 'windows'} were "
            "requested. A batch ends inside a window, so an output has either windows or batches: give "
            f"this export another path and another consumer, or export {other} (mode={claimed.mode!r})",
            path=layout.path,
            feed=wanted.feed,
        )
    unit = claimed.unit
    if unit is None:
        return
    misfit = next((each for each in windows if each != Window.containing(each.start, unit)), None)
    if misfit is not None or wanted.unit not in (None, unit):
        asked = f"window {misfit}" if misfit is not None else f"windows of {wanted.unit}"
        raise OutputError(
            f"{holds} in windows of {unit}, but {asked} was requested: an output keeps the unit of its "
            "first export. Use that unit, or another path",
            path=layout.path,
            feed=wanted.feed,
        )


def _what(claim: Claim) -> str:
    return f"the table {claim.table!r}, folded from" if claim.table else "the export of"


def check_same(where: str, theirs: str, ours: str, feed: str) -> None:
    """Raise ForeignOutputError if what was written is another database's; an identity may be unknown."""
    if theirs and ours and theirs != ours:
        raise ForeignOutputError(
            f"{where} holds feed {feed!r} of database {theirs}, but the connection leads to feed "
            f"{feed!r} of database {ours}. Their events must not be mixed. Check the connection, or "
            "give this database's export another path: see 'Two databases, or a copy' on the page "
            "'Recover'",
            feed=feed,
            database=theirs,
        )


def read(files: Files, layout: Layout) -> Claim | None:
    """Return whose output a folder is; None if nobody claimed it; raise ManifestError if that is damaged."""
    content = files.read(layout.claim)
    if content is None:
        return None
    try:
        return Claim.from_json(content.decode(errors="replace"), named=layout.claim)
    except ManifestError as problem:
        raise ManifestError(f"{problem.message}. {DAMAGED}", **problem.facts) from None


def tables(files: Files, feed: str) -> list[str]:
    """Return the tables whose states, folded from a feed, lie below a root."""
    found = []
    for name in files.names(f"{files.root}/{CONTROL}"):
        layout = Layout(files.root, unquote_name(name))
        # Damaged claims of other feeds, and folders of something else, are not our concern.
        with contextlib.suppress(OutputError, InvalidArgumentError):
            claim = read(files, layout)
            if claim is not None and claim.table and claim.feed == feed:
                found.append(claim.table)
    return found


def _check_ancestors(files: Files, layout: Layout) -> None:
    """
    Refuse a root that lies in the folders of another output: its readers would see our files as theirs.

    On an object store the path alone is judged: rights may end at the root, and what is above is not ours.
    """
    parts = layout.path.split("/")
    for depth in range(len(parts) - 1, max(len(parts) - 1 - _ANCESTORS, 0), -1):
        parent, name = "/".join(parts[:depth]), parts[depth]
        # Not by the files: above the root a link is the user's own.
        is_inside = files.moves_folders and name and os.path.exists(f"{parent}/{CONTROL}/{name}/feed.json")
        if name == CONTROL or is_inside:
            owner = "an export" if name == CONTROL else f"the export of feed {unquote_name(name)!r}"
            raise ForeignOutputError(
                f"{layout.path} lies inside {parent}/{name}, which {owner} below {parent} uses: give the "
                f"export of feed {layout.feed!r} another path",
                path=layout.path,
            )


def write(files: Files, layout: Layout, wanted: Claim) -> None:
    """Claim an output that was checked, or repeat that; raise ForeignOutputError if somebody else did."""
    claimed = read(files, layout)
    if claimed is None and files.names(layout.data):
        log.warning("%s is lost, and is written again from the other documents", layout.claim)
    if claimed is None or claimed.lake != wanted.lake:
        files.write(layout.claim, wanted.to_json().encode())
        # If two found the path free, the last one to write owns it. The other one notices here, or at its
        # commit if it reads too early.
        check_claim(read(files, layout) or wanted, layout, wanted)
