# SPDX-License-Identifier: Apache-2.0
"""A database's identity that tests know beforehand."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

DATABASE = "3f2a9c1e-5b7d-4e60-8a41-c0ffee000001"


def name_database(path: str | Path, identity: str = DATABASE) -> None:
    """Give a SQLite file that has a feed this identity."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute('update "changefeed.database" set id = ?', (identity,))
