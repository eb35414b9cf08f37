# SPDX-License-Identifier: Apache-2.0
"""Exports that are tables in an object store: the same tests as on disks, over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from airflow_changefeed.formats.base import LakeTable
from airflow_changefeed.formats.publish import FORMATS, open_table
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.storage.files import Files
from tests.stores import strangers
from tests.stores.servers import Server
from tests.unit.export.flights import FEED, Flights
from tests.unit.export.test_commit import one_thread  # noqa: F401 - a fixture of all tests here
from tests.unit.formats import test_publish as on_disks
from tests.unit.formats.lakes import Lake, two_shards
from tests.unit.formats.libraries import FormatLibrary


class StoredLake(Lake):
    """
    A new output in a store.

    :param folder: of its catalog.
    """

    def __init__(self, folder: Path, kind: str, flights: Flights, server: Server) -> None:
        folder.mkdir()
        self.server = server
        super().__init__(folder, kind, flights)
        self.files = server.files(proxied=False)
        self.store = self.store_of(self.files)

    def store_of(self, files: Files) -> ExportStore:
        """Return the export on a file system."""
        return ExportStore(files.url(files.root), FEED, files=files)

    @property
    def library(self) -> FormatLibrary:
        """What other readers of the table use."""
        data = self.files.url(self.store.layout.data)
        return strangers.library(self.kind, self.folder, data, self.server.direct["endpoint_url"])

    def table(self) -> LakeTable:
        """Open the table anew, as another process would."""
        return open_table(self.kind, self.store, self.server.direct, **self.library.named)


@pytest.fixture
def flights(tmp_path: Path, s3_server: Server) -> Flights:
    """Events of two shards, whose tasks write to the store."""
    return replace(two_shards(tmp_path / "feeds.db"), storage_options=s3_server.direct)


@pytest.fixture(params=FORMATS)
def lakes(
    request: pytest.FixtureRequest, tmp_path: Path, flights: Flights, s3_server: Server
) -> Callable[[], StoredLake]:
    """What makes new outputs."""
    numbers = count()
    return lambda: StoredLake(tmp_path / f"lake{next(numbers)}", request.param, flights, s3_server)


# A replacement takes all the steps that a first export does, but the creation of the table.
@pytest.mark.parametrize(
    ("is_replacement", "is_long"),
    [
        (True, False),
        pytest.param(False, False, marks=pytest.mark.nightly),
        pytest.param(False, True, marks=pytest.mark.nightly),
        pytest.param(True, True, marks=pytest.mark.nightly),
    ],
)
def test_killed_anywhere_and_retried_the_table_has_each_window_once(
    lakes: Callable[[], Lake], is_replacement: bool, is_long: bool
) -> None:
    """Killed before any change of the store, and around the commit."""
    on_disks.test_killed_anywhere_and_retried_the_table_has_each_window_once(lakes, is_replacement, is_long)


@pytest.mark.nightly
@pytest.mark.parametrize("is_long", [False, True])
def test_a_zombie_does_no_harm_at_any_step(lakes: Callable[[], Lake], is_long: bool) -> None:
    """An older attempt stops before any change of the store, a newer one does all of it."""
    on_disks.test_a_zombie_does_no_harm_at_any_step(lakes, is_long)


def test_many_at_once_leave_every_window_once(lakes: Callable[[], Lake]) -> None:
    """Exporters of different windows and of the same ones, who all begin with no table."""
    on_disks.test_many_at_once_leave_every_window_once(lakes())


def test_retries_of_a_window_are_one_commit(lakes: Callable[[], Lake]) -> None:
    """A try that comes after the table has the window finds no difference."""
    on_disks.test_retries_of_a_window_are_one_commit(lakes())
