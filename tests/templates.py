# SPDX-License-Identifier: Apache-2.0
"""SQLite files of feeds that are made once in each process, for tests to begin with."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory


@cache
def content_of(make: Callable[[Path], None]) -> bytes:
    """Return the content of a SQLite file that a function makes; in each process it is made once."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "feeds.db"
        make(path)
        assert os.listdir(folder) == [path.name], "a connection is open"
        return path.read_bytes()
