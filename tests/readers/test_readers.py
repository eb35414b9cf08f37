# SPDX-License-Identifier: Apache-2.0
"""What Spark and DuckDB, by their own readers of the formats, get of our tables: every value."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest

from tests.unit.formats.exports import Export, Row, change, in_order, paths, unit
from tests.unit.formats.test_reading import written

PROJECT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(900)
DELTA_VERSION, ICEBERG_VERSION, SQLITE_DRIVER = "4.4.0", "1.12.0", "org.xerial:sqlite-jdbc:3.50.3.0"
#: Spark's minor here, and the newest one that Iceberg has a runtime for.
NEWEST, ICEBERGS = ".".join(version("pyspark").split(".")[:2]), "4.1"
#: Reader, format, and Spark's minor.
READERS = [
    ("spark", "delta", NEWEST),
    ("spark", "delta", ICEBERGS),
    ("spark", "iceberg", ICEBERGS),
    ("duckdb", "delta", ""),
    ("duckdb", "iceberg", ""),
]


def read(export: Export, reader: str, minor: str) -> list[Row]:
    """Read all rows in the reader's environment."""
    table = packages = ""
    if export.format == "delta":
        table, packages = export.store.layout.data, f"io.delta:delta-spark_{minor}_2.13:{DELTA_VERSION}"
    elif reader == "spark":
        runtime = f"org.apache.iceberg:iceberg-spark-runtime-{minor}_2.13:{ICEBERG_VERSION}"
        table, packages = f"{export.folder}/catalog.db", f"{runtime},{SQLITE_DRIVER}"
    else:
        table = str(max(Path(export.store.layout.data, "_iceberg", "metadata").glob("*.metadata.json")))
    folder = ".venv-readers" if reader == "duckdb" else f".venv-spark-{minor}"
    python = sys.executable if minor == NEWEST else str(PROJECT / folder / "bin" / "python")
    rows = Path(export.path, "rows.arrow")
    command = [python, "-m", "tests.readers.read", reader, export.format, table, str(rows)]
    environment = {**os.environ, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    done = subprocess.run(
        [*command, packages], cwd=PROJECT, env=environment, check=False, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr[-5000:]
    with pa.ipc.open_file(rows) as file:
        return in_order(file.read_all().to_pylist())


@pytest.mark.parametrize(("reader", "format", "minor"), READERS)
def test_every_value_is_read(tmp_path: Path, reader: str, format: str, minor: str) -> None:
    """Also of the partitions, which no file has."""
    export = Export(format, tmp_path)
    # Spark has no time of day.
    files = written(export, without=["clock"])
    assert read(export, reader, minor) == export.expected(files)


@pytest.mark.parametrize(("reader", "format", "minor"), READERS)
def test_what_was_replaced_is_not_read(tmp_path: Path, reader: str, format: str, minor: str) -> None:
    """Its files are still there."""
    export = Export(format, tmp_path)
    old, other, new = (
        export.write(unit(hour), attempt, rows) for hour, attempt, rows in ((0, 1, 5), (1, 2, 2), (0, 3, 4))
    )
    table = export.table()
    table.commit(table.look(), change([old, other]))
    table.commit(table.look(), change([new], remove=[old.path]))
    assert paths(table.look()) == sorted((new.path, other.path))
    assert Path(export.store.layout.data, old.path).exists()
    assert read(export, reader, minor) == export.expected([other, new])


def test_files_that_were_not_written_for_iceberg_are_read(tmp_path: Path) -> None:
    """Of an export that was published as a table later, whose times are in milliseconds."""
    export = Export("iceberg", tmp_path)
    plain = replace(export, format="delta")
    file = plain.write(unit(0), 1, 5)
    export.table().commit(export.table().look(), change([file]))
    assert read(export, "spark", ICEBERGS) == export.expected([file])
