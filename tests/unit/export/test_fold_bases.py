# SPDX-License-Identifier: Apache-2.0
"""Which state a fold starts from: the newest before its time, the one that was named, or none."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.capture import Operation
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import FoldError, ManifestError, NotExportedError
from airflow_changefeed.lake.fold_plan import FoldSource, find_fold
from airflow_changefeed.lake.states import BaseChoice, State, StateStore, new_attempt
from tests.unit.export.captures import CAPTURE, IMAGE, TABLE, CapturedExport, Event, reshaped, shape
from tests.unit.export.flights import START, hours

HOUR = timedelta(hours=1)


@pytest.fixture
def export(tmp_path: Path) -> CapturedExport:
    """Six hours of a table, an event in each."""
    export = CapturedExport.create(tmp_path / "out")
    for hour in range(6):
        event = Event(START + (hour + 0.5) * HOUR, "add", None, {"id": hour})
        export.write([event], hours(hour, hour + 1)[0])
    return export


def recorded(*names: str) -> dict[Operation, dict[str, str]]:
    """Columns as the shape of a capture has them, the same for all operations."""
    return {operation: {name: name for name in names} for operation in Operation}


def save(
    export: CapturedExport, hour: float, database: str | None = None, *, table: str | None = None
) -> Path:
    """Write a state without rows, and return its folder."""
    at, attempt = START + hour * HOUR, new_attempt()
    owner, root = export.store.database(), str(Path(export.store.path).parent / "states")
    StateStore(root, CAPTURE, TABLE, database=owner).claim()
    states = StateStore(root, CAPTURE, TABLE, database=owner if database is None else database)
    path = f"{states.writing(at, attempt)}/part-0.parquet"
    with states.files.writer(path) as file:
        pq.write_table(pa.table({"id": pa.array([], pa.int64())}), file)
    state = states.commit(at, attempt, find_fold(export.store, at, table).base_facts())
    return Path(state.path)


def found(export: CapturedExport, hour: float, base: datetime | str = "newest") -> FoldSource:
    """Plan a fold at a time."""
    choice = BaseChoice(str(Path(export.store.path).parent / "states"), base)
    return find_fold(export.store, START + hour * HOUR, bases=choice)


def hours_read(source: FoldSource) -> list[int]:
    """The hours whose files a fold reads."""
    files = [file for group in source.groups for file in group.files]
    return sorted(int((file.facts.first.time - START) / HOUR) for file in files)


def begin(source: FoldSource) -> float | None:
    """The hour of the base."""
    return None if source.base is None else (source.base.begin - START) / HOUR


def test_the_newest_state_before_the_time_is_the_base(export: CapturedExport) -> None:
    """Only later files are read. Not one at the time itself: a fold that is repeated makes it again."""
    assert begin(found(export, 6)) is None
    for hour in (1, 2.5, 4):
        save(export, hour)
    places = {
        place: (begin(source), hours_read(source))
        for place in (1, 2, 4, 6)
        if (source := found(export, place))
    }
    assert places == {1: (None, [0]), 2: (1, [1]), 4: (2.5, [2, 3]), 6: (4, [4, 5])}
    assert begin(found(export, 6, "beginning")) is None
    assert begin(found(export, 6, START + HOUR)) == 1
    assert begin(found(export, 6, "2013-01-01T01:00:00Z")) == 1


def test_a_gap_that_a_state_could_not_know_ends_it(export: CapturedExport) -> None:
    """One that began before the state, too, was found later: the state may lack what was missed then."""
    save(export, 3)
    for after, detected, base in ((1, 2, None), (3, 3.5, None), (5, 5.2, 3), (4.5, 5, None)):
        export.shape = reshaped(shape(), gaps=((START + after * HOUR, START + detected * HOUR),))
        export.write([Event(START + 5.5 * HOUR, "add", None, {"id": 5})], hours(5, 6)[0])
        assert begin(found(export, 5)) == base
    export.shape = reshaped(shape(), gaps=((START + HOUR, START + 2 * HOUR),))
    export.write([Event(START + 2.5 * HOUR, "add", None, {"id": 2})], hours(2, 3)[0])
    export.write([Event(START + 5.5 * HOUR, "add", None, {"id": 5})], hours(5, 6)[0])
    save(export, 3)
    assert begin(found(export, 5)) == 3


def test_a_shard_that_was_there_must_go_on(export: CapturedExport) -> None:
    """Also where its events of before are deleted: it cannot have come later. One that is new can."""
    for hour in range(3):
        export.write([], hours(hour, hour + 1)[0], shard=1)
    save(export, 3)
    export.write([], hours(4, 5)[0], shard=1)
    export.write([], hours(4, 5)[0], shard=2)
    for manifest in [
        each for each in export.store.list() if each.unit.range.upto < Ulid.floor(START + 3 * HOUR)
    ]:
        export.store.remove_manifest(manifest.unit, manifest.attempt)
    with pytest.raises(NotExportedError, match=r"shard 1 \[2013-01-01T03:00:00Z, 2013-01-01T04:00:00Z\)"):
        found(export, 5)
    export.write([], hours(3, 4)[0], shard=1)
    source = found(export, 5)
    assert (begin(source), source.shards) == (3, (0, 1, 2))
    for manifest in export.store.list(1):
        export.store.remove_manifest(manifest.unit, manifest.attempt)
    shutil.rmtree(export.store.layout.shard_manifests(1))
    with pytest.raises(NotExportedError, match=r"shard 1 \[2013-01-01T03:00:00Z, 2013-01-01T05:00:00Z\)"):
        found(export, 5)


def test_an_earlier_time_is_judged_by_the_columns_of_then(export: CapturedExport) -> None:
    """Whatever the capture has become since: of fewer operations, of more tables, or another one."""
    save(export, 3)
    kept = {each: columns for each, columns in shape().tables[TABLE].columns.items() if each != "delete"}
    for later in (
        reshaped(shape(), columns=kept),
        shape(TABLE, "shop.Box"),
        shape(begun_at=START + 6 * HOUR),
        shape("shop.Boot"),
    ):
        export.shape = later
        export.write([Event(START + 6.5 * HOUR, "add", None, {"id": 6})], hours(6, 7)[0])
        assert begin(found(export, 4)) == 3


def test_a_table_that_is_another_one_has_no_base(export: CapturedExport) -> None:
    """By its name in the capture, or by its key."""
    save(export, 3)
    export.shape = shape("shop.Boot")
    export.write([Event(START + 6.5 * HOUR, "add", None, {"id": 6}, "shop.Boot")], hours(6, 7)[0])
    assert begin(found(export, 7)) is None
    export.shape = reshaped(shape(), key_columns=("id", "name"))
    export.write([Event(START + 6.5 * HOUR, "add", None, {"id": 6, "name": "a"})], hours(6, 7)[0])
    assert begin(found(export, 7)) is None
    with pytest.raises(FoldError, match="its base: events since then were recorded with another key"):
        found(export, 7, START + 3 * HOUR)


def test_a_type_that_the_base_cannot_have_needs_all_events(export: CapturedExport) -> None:
    """Exported again in the type of now, they have one."""
    save(export, 3)
    export.image = pa.schema([("id", pa.int64()), ("name", pa.int64()), ("price", pa.decimal128(9, 2))])
    for hour in range(7):
        event = Event(START + (hour + 0.5) * HOUR, "add", None, {"id": hour})
        export.write([event], hours(hour, hour + 1)[0])
    source = found(export, 7)
    assert (begin(source), source.kinds["name"]) == (None, pa.int64())


def test_a_field_of_another_table_is_not_the_columns(export: CapturedExport) -> None:
    """Box has had a size long before the table got one."""
    boxes = recorded("id", "size")
    export.image = pa.schema([*IMAGE, ("size", pa.int16())])
    export.shape = reshaped(shape(TABLE, "shop.Box"), "shop.Box", columns=boxes)
    export.write([Event(START + 0.5 * HOUR, "add", None, {"id": 0})])
    save(export, 3, table=TABLE)
    own = recorded(*IMAGE.names, "size")
    export.shape = reshaped(export.shape, columns=own)
    export.write([Event(START + 3.5 * HOUR, "add", None, {"id": 3, "size": 1})], hours(3, 4)[0])
    choice = BaseChoice(str(Path(export.store.path).parent / "states"))
    assert begin(find_fold(export.store, START + 4 * HOUR, TABLE, choice)) == 3


def test_a_state_that_is_replaced_meanwhile_is_read_again(
    export: CapturedExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not damaged."""
    save(export, 3)
    read, replaced = StateStore.read, list[Path]()

    def replacing(self: StateStore, at: datetime) -> State | None:
        state = read(self, at)
        if not replaced:
            replaced.append(Path())
            replaced.append(save(export, 3))
        return state

    monkeypatch.setattr(StateStore, "read", replacing)
    base = found(export, 5).base
    assert Path(base.paths[0]).parent == replaced[1]


def test_a_column_with_the_shards_name_makes_no_base(export: CapturedExport) -> None:
    """The state is the table's all the same."""
    export.image = pa.schema([*IMAGE, ("Changefeed_Shard", pa.int64())])
    own = recorded(*export.image.names)
    export.shape = reshaped(shape(), columns=own)
    export.write([Event(START + 0.5 * HOUR, "add", None, {"id": 0})])
    save(export, 1)
    assert begin(found(export, 3)) is None


def test_an_idle_feed_is_folded_from_its_state(export: CapturedExport) -> None:
    """
    The state knows the columns, and nothing before it is read. Without a time the end of the export counts,
    and the newest state before that; one of another database is none.
    """
    for hour in range(6, 9):
        export.write([], hours(hour, hour + 1)[0])
    save(export, 1, "another")
    assert begin(found(export, 3)) is None
    save(export, 6)
    source = found(export, 9)
    assert (begin(source), hours_read(source), list(source.kinds)) == (6, [], ["id", "name", "price"])
    choice = BaseChoice(str(Path(export.store.path).parent / "states"))
    source = find_fold(export.store, bases=choice)
    assert (source.at, begin(source)) == (START + 9 * HOUR, 6)


def test_a_base_that_is_not_there_is_refused(export: CapturedExport) -> None:
    """Never another one instead; the last ones are named."""
    for hour in (1, 4):
        save(export, hour)
    with pytest.raises(FoldError, match=r"of that time.*\(2013-01-01T01:00:00Z\), or .*base='beginning'$"):
        found(export, 3, START + 4 * HOUR)
    with pytest.raises(FoldError, match=r"\(2013-01-01T01:00:00Z, 2013-01-01T04:00:00Z\)"):
        found(export, 6, START + 2 * HOUR)


def test_a_base_that_lost_a_file_is_named(export: CapturedExport) -> None:
    """With what to do; and so is a damaged one."""
    folder = save(export, 1)
    assert begin(found(export, 3)) == 1
    (folder / "part-0.parquet").unlink()
    with pytest.raises(
        ManifestError, match=r"has lost part-0.parquet; delete its folder, or fold with base='beginning'"
    ):
        found(export, 3)
    assert begin(found(export, 3, "beginning")) is None
    (document,) = folder.parent.glob("_state.*.json")
    document.write_text(document.read_text().replace(TABLE, "shop.Hat"))
    with pytest.raises(ManifestError, match=r"is damaged.*delete its folder"):
        found(export, 3)
