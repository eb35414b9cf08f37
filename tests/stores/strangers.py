# SPDX-License-Identifier: Apache-2.0
"""The libraries of the formats, as strangers use them on S3: with options of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.unit.formats.libraries import Delta, FormatLibrary, Iceberg, catalog_below


class _Stored(FormatLibrary):
    """
    A library and a server.

    :param endpoint: of the server.
    """

    def __init__(self, folder: Path, data: str, endpoint: str) -> None:
        super().__init__(folder, data)
        self.endpoint = endpoint


class StoredDelta(_Stored, Delta):
    """deltalake."""

    def table(self) -> Any:
        """Open the table."""
        from deltalake import DeltaTable

        options = {
            "aws_access_key_id": "tests",
            "aws_secret_access_key": "tests-only",
            "aws_region": "us-east-1",
            "aws_endpoint_url": self.endpoint,
            "aws_allow_http": "true",
        }
        return DeltaTable(self.data, storage_options=options)

    def notes(self) -> list[Mapping[str, Any]]:
        """
        Return the log, by s3fs.

        deltalake's history() waits for an answer with Python locked, so a server of this process gives none.
        """
        import fsspec

        keys = {"key": "tests", "secret": "tests-only", "endpoint_url": self.endpoint}
        log = fsspec.open_files(f"{self.data}/_delta_log/*.json", "rt", **keys)
        found = []
        for each in sorted(log, key=lambda each: each.path):
            with each as file:
                found += [json.loads(line) for line in file]
        return [action["commitInfo"] for action in found if "commitInfo" in action]


class StoredIceberg(_Stored, Iceberg):
    """pyiceberg."""

    @contextmanager
    def catalog(self) -> Any:
        """Open the catalog."""
        from pyiceberg.catalog import load_catalog

        properties = {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": "tests",
            "s3.secret-access-key": "tests-only",
            "s3.region": "us-east-1",
        }
        catalog = load_catalog(**catalog_below(self.folder), **properties)
        try:
            yield catalog
        finally:
            catalog.close()


def library(format: str, folder: Path, data: str, endpoint: str) -> FormatLibrary:
    """Return the library of a format."""
    libraries: Mapping[str, type[StoredDelta | StoredIceberg]] = {
        "delta": StoredDelta,
        "iceberg": StoredIceberg,
    }
    return libraries[format](folder, data, endpoint)
