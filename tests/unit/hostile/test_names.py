# SPDX-License-Identifier: Apache-2.0
"""Names of tables and texts of servers in every alphabet, and some of none."""

from __future__ import annotations

import base64
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core.feed import quote_name, unquote_name
from airflow_changefeed.exceptions import (
    ChangefeedError,
    InvalidArgumentError,
    changefeed_error,
    error_text,
    own_error,
)
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.output.layout import Layout, parse_spec
from airflow_changefeed.output.schemas import parse_schema, schema_text
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.mssql.connection.errors import THROWN, name_text
from tests.unit.core.strategies import texts
from tests.unit.hostile.mutation import NAMES, hostile, value_or_error

ANY = st.text(max_size=60) | st.sampled_from(NAMES)


@hostile
@given(texts)
def test_any_name_has_a_folder_of_its_own(name: str) -> None:
    """One that no other name has, that is no way to another folder, and that is not hidden."""
    quoted = quote_name(name)
    assert unquote_name(quoted) == name
    assert quoted.isascii()
    assert not set('/\\\x00 :*?"<>|') & set(quoted)
    assert not quoted.startswith((".", "_"))
    layout = Layout("/lake", name)
    if name:
        assert parse_spec(layout.spec(7)) == ("/lake", name, 7)


@pytest.mark.parametrize("name", ["\ud800", "a\udcffb"])
def test_half_a_character_is_refused(name: str) -> None:
    """No document could hold it; Windows's and SQL Server's names may."""
    with pytest.raises(InvalidArgumentError, match="half a character"):
        quote_name(name)


@hostile
@given(name=ANY)
def test_a_table_of_any_name_is_exported_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    """Names are what the database allows; nothing is written beside the output."""
    home = tmp_path_factory.mktemp("names")
    database, out = home / "feeds.db", home / "out"
    quoted = '"' + name.replace('"', '""') + '"'
    try:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute(f"create table {quoted} (id integer primary key)")
            connection.commit()
    except (sqlite3.Error, ValueError, UnicodeError):
        # No name for SQLite.
        name = name or "x"
    described = {"type": "sqlite", "path": str(database), "lock_timeout": 1.0}
    with closing(open_source(described)) as source, value_or_error():
        source.set_up_feed(name)
        store = ExportStore(str(out), name)
        source.seal(name, source.now())
        make_plan(source, store, ExportRequest(name, str(out), "c", "run/1", None))
        store.claim(source.identity().id)
        store.list()
        assert store.database()
    assert {path.name for path in home.iterdir()} <= {"out", "feeds.db", "feeds.db-wal", "feeds.db-shm"}


@hostile
@given(st.sampled_from(sorted(THROWN)), ANY, ANY)
def test_a_server_may_say_anything(number: int, before: str, after: str) -> None:
    """Also what looks like one of our errors; it is one of ours then, or unknown."""
    versions = f"is at resource version {'9' * 30} ({before}), not -1: nothing was changed"
    for text in (before, f"{before}changefeed {number}: {after}", f"changefeed {'9' * 5000}: {after}"):
        for said in (text, f"{text} {versions}"):
            found = name_text(said, secret=after, feed="f", shard=1)
            assert found is None or isinstance(found, ChangefeedError)
            assert not found or not (len(after) > 3 and after.strip() in found.message and "Version" in said)


@hostile
@given(ANY, st.sampled_from(["FeedNotFoundError", "ChangefeedError", "Any", "re", "_NAMED", "__doc__"]))
def test_what_another_process_says_is_an_error_of_ours(text: str, name: str) -> None:
    """A receipt, or an exception of Spark's, may name any class."""
    for said in (text, f"airflow_changefeed.exceptions.{name}: {text}"):
        error = own_error(said)
        assert isinstance(error, ChangefeedError)
        again = changefeed_error(error_text(error))
        assert type(again) is type(error)


@hostile
@given(st.floats(0, 1), st.binary(max_size=8), st.booleans())
def test_a_schema_of_any_bytes_is_read_or_refused(place: float, piece: bytes, is_cut: bool) -> None:
    """Manifests have it, and so have Parquet's footers."""
    inner = pa.struct([("x", pa.list_(pa.decimal128(9, 2))), ("y", pa.dictionary(pa.int8(), pa.string()))])
    schema = pa.schema([("a", pa.int64()), ("ß", inner), ("t", pa.timestamp("ms", "Europe/Berlin"))])
    whole = base64.b64decode(schema_text(schema))
    at = int(place * len(whole))
    changed = whole[:at] + piece + (b"" if is_cut else whole[at + len(piece) :])
    for text in (base64.b64encode(changed).decode(), schema_text(schema)[:at], "=" * at, "\ud800"):
        with value_or_error("m.json"):
            found = parse_schema(text, named="m.json")
            assert "".join(f"{each.name}: {each.type}" for each in found) or not len(found)


def test_a_path_is_not_too_long_unsaid(tmp_path: Path) -> None:
    """A Japanese name of 30 characters has 270 bytes in a folder's name, which local disks refuse."""
    store = ExportStore(str(tmp_path), "東" * 128)
    with pytest.raises(ChangefeedError, match="File name too long"):
        store.claim("1")
