# SPDX-License-Identifier: Apache-2.0
"""
What a Spark job gets besides the plan: how to reach the feed and the output. Holds secrets; a file of mode
0600.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_changefeed.core.codec import Document


@dataclass(frozen=True)
class JobConnection(Document):
    """
    How a Spark job reaches the feed and the output.

    :param source: as ``FeedSource.describe`` gives it.
    :param storage_options: for fsspec.
    """

    KIND = "changefeed connection"

    source: Mapping[str, Any] = field(repr=False)
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def save(self, path: str) -> None:
        """Write the connection to a new file that only its owner reads."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(self.to_json())
