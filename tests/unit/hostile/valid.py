# SPDX-License-Identifier: Apache-2.0
"""Draws valid documents of every class that there is, by the types of their fields."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import airflow_changefeed
from airflow_changefeed.core.codec import Document, encode
from airflow_changefeed.core.consumer import ConsumerSpec, OnPoison
from airflow_changefeed.core.cursor import Frontier
from airflow_changefeed.core.export_plan import ExportOptions, FileFacts
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.export.completed import CompletedExport, CompletedWindow
from airflow_changefeed.lake.merge_task import MergeTask
from airflow_changefeed.sources.base_capture import KeyRange, key_text
from tests.unit.core.strategies import frontiers, ranges, shards, texts, times, ulids, units, windows

_completed_windows = st.builds(
    lambda window, rows: CompletedWindow(window.start, window.end, rows), windows, st.integers(0)
)
for _kind, _drawn in {
    Ulid: ulids,
    UlidRange: ranges,
    Window: windows,
    ExportUnit: units,
    Frontier: frontiers(),
    KeyRange: st.builds(KeyRange, st.just(key_text([1, "a", b"b"])), st.none()),
    datetime: times,
    timedelta: st.timedeltas(timedelta(0), timedelta(days=30)),
    uuid.UUID: st.uuids(),
    str: texts,
    float: st.floats(allow_nan=False, allow_infinity=False),
    ExportOptions: st.builds(ExportOptions, compression=st.sampled_from(["zstd", "none"])),
    FileFacts: st.builds(
        FileFacts, name=st.just("part-00000-00000.parquet"), checksum=st.integers(0, (1 << 128) - 1)
    ),
    ConsumerSpec: st.builds(
        ConsumerSpec,
        st.just("mailer"),
        texts,
        st.integers(1, 9),
        st.sampled_from(OnPoison),
        ddl=st.booleans(),
    ),
    MergeTask: st.builds(
        MergeTask,
        table_format=st.just("delta"),
        catalog_table=st.just(""),
        base=st.sampled_from(["newest", "beginning"]),
        deleted=st.sampled_from(["remove", "keep"]),
        history=st.just(False),
        keep_for=st.timedeltas(timedelta(hours=1), timedelta(days=30)),
    ),
    CompletedExport: st.builds(
        lambda window, **given: CompletedExport(window_start=window.start, window_end=window.end, **given),
        window=windows,
        feed=texts,
        path=texts,
        rows=st.integers(0),
        manifests=st.lists(texts, max_size=3).map(tuple),
        shards=st.lists(shards, max_size=3).map(tuple),
        database=texts,
        windows=st.lists(_completed_windows, max_size=3).map(tuple),
        batch=st.dictionaries(shards, ranges, max_size=3),
    ),
}.items():
    st.register_type_strategy(_kind, _drawn)


# What the type alone does not say: a mapping of anything.
_OPEN: dict[str, st.SearchStrategy[Any]] = {
    "JobConnection": st.fixed_dictionaries(
        {"source": st.just({"type": "sqlite", "path": "x.db"}), "storage_options": st.just({"key": "s3cr3t"})}
    ),
    "TaskResult": st.fixed_dictionaries({"facts": st.just({"rows": 1}), "error": st.none() | texts}),
}


def document_kinds() -> list[type[Document]]:
    """Return the classes of all documents that the package has."""
    package = Path(airflow_changefeed.__path__[0])
    for file in package.rglob("*.py"):
        if "\n    KIND = " in file.read_text(encoding="utf-8"):
            name = file.relative_to(package.parent).with_suffix("").as_posix()
            importlib.import_module(name.replace("/", "."))
    found = [kind for kind in _kinds_of(Document) if kind.__module__.startswith("airflow_changefeed.")]
    return sorted(found, key=lambda kind: kind.__name__)


def _kinds_of(base: type[Any]) -> Iterator[type[Any]]:
    for kind in base.__subclasses__():
        yield from [kind] if "KIND" in vars(kind) else _kinds_of(kind)


def drawn(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Draw valid values of a class."""
    given = _OPEN.get(kind.__name__)
    return st.from_type(kind) if given is None else given.map(lambda fields: kind(**fields))


_LARGE = 5_000


@cache
def samples(kind: type[Any]) -> tuple[Any, ...]:
    """Return some valid values of a class, always the same: to draw them for each example is slow."""
    found: list[Any] = []

    @seed(0)
    @settings(
        max_examples=25, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(drawn(kind))
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    # The largest of those that are no hundreds of kilobytes.
    sizes = {number: len(str(encode(value))) for number, value in enumerate(found)}
    chosen = sorted((number for number, size in sizes.items() if size < _LARGE), key=sizes.__getitem__)
    return tuple(found[number] for number in chosen[-4:])
