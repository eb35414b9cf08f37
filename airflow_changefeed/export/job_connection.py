# SPDX-License-Identifier: Apache-2.0
"""
What a Spark job is told besides the plan: how to reach the feed and the output. Holds secrets; a file of mode
0600.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_changefeed.core import documents
from airflow_changefeed.exceptions import TerminalError

KIND = "changefeed connection"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class JobConnection:
    """
    How a Spark job reaches the feed and the output.

    :param source: as ``FeedSource.describe`` gives it.
    :param storage_options: for fsspec.
    """

    source: Mapping[str, Any] = field(repr=False)
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_json(self) -> str:
        """Write the connection."""
        return documents.dump(
            KIND, SCHEMA_VERSION, {"source": dict(self.source), "storage_options": dict(self.storage_options)}
        )

    @classmethod
    def from_json(cls, text: str, *, where: str) -> JobConnection:
        """
        Read a connection.

        :raises TerminalError: not a connection, or damaged; the message holds nothing of it.
        """
        content = documents.load(text, KIND, SCHEMA_VERSION, where=where, error=TerminalError)
        return cls(content["source"], content["storage_options"])

    def save(self, path: str) -> None:
        """Write the connection to a new file that only its owner reads."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(self.to_json())
