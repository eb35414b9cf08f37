# SPDX-License-Identifier: Apache-2.0
"""Making a feed over a table, and dropping it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_changefeed import __version__
from airflow_changefeed.core.feed import FeedKind
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import FeedNotFoundError, FeedSetupError, InvalidArgumentError
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_control import Installed
from tests.integration.contract.bench import Bench, another, check_info, set_up
from tests.integration.contract.engines import Engine, Table

KINDS = pytest.mark.parametrize("kind", list(FeedKind), ids=lambda kind: kind.value)
ONE, TWO, THREE = (
    (("EventID", "integer"),),
    (("Aggregate", "text"), ("Version", "integer")),
    (
        ("A", "integer"),
        ("B", "text"),
        ("C", "integer"),
    ),
)


@KINDS
@pytest.mark.parametrize("keys", [ONE, (("Name", "text"),), TWO, THREE], ids=["1", "text", "2", "3"])
def test_the_tables_own_primary_key_is_embedded(engine: Engine, kind: FeedKind, keys: Any) -> None:
    """A feed gives back the keys of its events, whatever number and type of columns they have."""
    bench = set_up(engine, Table(keys=keys, kind=kind))
    written = bench.write(15)
    assert bench.keys() == written
    assert len({*written}) == 15


@KINDS
def test_setting_up_again_changes_nothing(engine: Engine, kind: FeedKind) -> None:
    """Setup may be a step of every deployment: events, order and cursors stay."""
    bench = set_up(engine, Table(kind=kind))
    first = bench.write(3)
    order = bench.events()
    bench.source.begin_consumer("export", bench.feed, {0: Ulid.MIN}, by="test")
    second = bench.write(2)
    check_info(bench.source.set_up_feed(bench.feed, kind=kind), bench.table)
    assert bench.events()[:3] == order
    assert bench.keys() == first + second
    assert len(bench.source.cursors(bench.feed)) == 1


def test_installing_again_changes_nothing(either: Bench) -> None:
    """It brings objects and feeds to this version, so it may be a step of every deployment."""
    keys = either.write(3)
    order = either.events()
    either.seal()
    either.source.begin_consumer("export", either.feed, {0: Ulid.MIN}, by="test")
    state, cursors = either.status(), either.source.cursors(either.feed)
    assert either.source.version() == __version__
    assert either.source.install() == Installed(__version__, __version__)
    assert either.source.version() == __version__
    assert either.events() == order
    assert (either.status(), either.source.cursors(either.feed)) == (state, cursors)
    check_info(either.source.feed(either.feed), either.table)
    assert either.keys() == keys
    later = either.write(2)
    assert either.keys() == keys + later


def test_a_source_satisfies_the_protocol(bench: Bench) -> None:
    """It has all that ``FeedSource`` names."""
    assert isinstance(bench.source, FeedSource)


def test_a_source_opens_elsewhere_from_its_description(bench: Bench) -> None:
    """Spark tasks get the description and see the same feed."""
    keys = bench.write(2)
    with_other = Bench(bench.engine, open_source(bench.source.describe(), lock_timeout=5), bench.table)
    assert with_other.keys() == keys
    with_other.source.close()
    assert with_other.keys() == keys


#: Reads a source's description, uses the source, forks, and uses it in the child and then in the parent.
_FORK = """
import json, os, sys
from airflow_changefeed.sources import open_source
source = open_source(json.load(sys.stdin))
before = [info.name for info in source.feeds()]
child = os.fork()
if not child:
    os._exit(0 if [info.name for info in source.feeds()] == before else 3)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), [info.name for info in source.feeds()] == before, len(before))
"""


def test_a_source_is_kept_across_a_fork(bench: Bench) -> None:
    """Parent and child share no connection: both go on."""
    done = subprocess.run(
        [sys.executable, "-c", _FORK],
        input=json.dumps(bench.source.describe()),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == ["0", "True", "1"]


def test_feeds_are_listed_by_name(bench: Bench) -> None:
    """Several feeds live in one database and know nothing of each other's events."""
    other = another(bench, "a.Other")
    keys, others = bench.write(2), other.write(3)
    assert [info.name for info in bench.source.feeds()] == ["a.Other", bench.feed]
    assert bench.source.feed("a.Other") == other.source.feeds()[0]
    assert (bench.keys(), other.keys()) == (keys, others)


def _refused(engine: Engine, table: Table, word: str, **options: Any) -> None:
    source = engine.source()
    # Some databases fold names to lower case.
    with pytest.raises(FeedSetupError, match=f"(?i){word}"):
        source.set_up_feed(table.name, **{"kind": table.kind, **options})
    assert all(info.name != table.name for info in source.feeds())


@KINDS
def test_a_table_without_primary_key_is_refused(engine: Engine, kind: FeedKind) -> None:
    """Its events have no identity. On SQL Server those of serialized writers have one, their ULID."""
    table = Table(keys=(), kind=kind)
    if engine.name == "mssql" and kind is FeedKind.SERIALIZED:
        bench = set_up(engine, table)
        bench.write(2)
        assert len(bench.fed()) == 2
        return
    engine.create_table(table)
    _refused(engine, table, "primary key")


def test_a_missing_table_is_refused(bench: Bench) -> None:
    """The error names the table."""
    _refused(bench.engine, Table(name="no.Such"), r"no\.Such")


def test_columns_that_the_feed_needs_itself_are_refused(engine: Engine) -> None:
    """As keys, or because they would collide in the output; the error names the column."""
    keys = ("ulid", "shard_id", "TIME_HINT", "order_sequence")
    tables = [Table(name=f"a.Key{n}", keys=((name, "integer"),)) for n, name in enumerate(keys)]
    names = ("changefeed_ulid", "Changefeed_Time", "changefeed_x")
    for kind in FeedKind:
        tables += [
            Table(name=f"a.{kind.value}{n}", columns=((name, "text"),), kind=kind)
            for n, name in enumerate(names)
        ]
    for table, name in zip(tables, (*keys, *names, *names), strict=True):
        engine.create_table(table)
        _refused(engine, table, name)


def test_serialized_writers_need_a_column_for_their_ulid(engine: Engine) -> None:
    """A table without one is refused."""
    table = Table()
    engine.create_table(table)
    _refused(engine, table, "ulid", kind=FeedKind.SERIALIZED)


@KINDS
def test_a_feed_of_the_other_kind_is_refused(engine: Engine, kind: FeedKind) -> None:
    """It stays as it is, events included."""
    bench = set_up(engine, Table(kind=kind))
    keys = bench.write(2)
    other = next(found for found in FeedKind if found is not kind)
    with pytest.raises(FeedSetupError, match="already exists"):
        bench.source.set_up_feed(bench.feed, kind=other)
    with pytest.raises(FeedSetupError):
        bench.source.set_up_feed(bench.feed, kind=kind, shard_key_type="bigint")
    assert bench.source.feed(bench.feed).kind is kind
    assert bench.keys() == keys


def test_wrong_options_are_refused(engine: Engine) -> None:
    """An unknown shard key type and a negative tolerance, both named at once."""
    table = Table()
    engine.create_table(table)
    with pytest.raises(InvalidArgumentError, match=r"shard_key_type.*time_tolerance"):
        engine.source().set_up_feed(table.name, shard_key_type="text", time_tolerance=-timedelta(1))


@KINDS
def test_dropping_a_feed_keeps_its_table(engine: Engine, kind: FeedKind) -> None:
    """Order, cursors and marks are gone, the rows stay, and the table may become a feed again."""
    bench = set_up(engine, Table(kind=kind))
    keys = bench.write(3)
    bench.seal()
    bench.source.begin_consumer("export", bench.feed, {0: Ulid.MIN}, by="test")
    bench.source.drop_feed(bench.feed)
    assert bench.source.feeds() == []
    with pytest.raises(FeedNotFoundError):
        bench.source.shards(bench.feed)
    assert engine.keys(bench.table) == set(keys)
    bench.source.set_up_feed(bench.feed, kind=kind)
    assert bench.source.cursors(bench.feed) == []
    assert bench.source.stale_marks(bench.feed) == []


def test_dropping_one_feed_leaves_the_others(bench: Bench) -> None:
    """Their events and cursors stay."""
    other = another(bench, "a.Other")
    keys = other.write(2)
    other.source.begin_consumer("export", other.feed, {0: Ulid.MIN}, by="test")
    bench.source.drop_feed(bench.feed)
    assert other.keys() == keys
    assert len(other.source.cursors(other.feed)) == 1


#: Every call that names a feed.
CALLS: tuple[Callable[[Any], object], ...] = (
    lambda source: source.feed("no.Such"),
    lambda source: source.shards("no.Such"),
    lambda source: source.poll("no.Such", "reader"),
    lambda source: source.read_feed("no.Such", 0, Ulid.MIN),
    lambda source: source.count("no.Such", 0, []),
    lambda source: list(source.stream("no.Such", 0, UlidRange(Ulid.MIN, Ulid.MAX))),
    lambda source: source.schema("no.Such"),
    lambda source: source.stale_marks("no.Such"),
    lambda source: source.drain("no.Such"),
    lambda source: source.seal("no.Such", source.now()),
    lambda source: source.purge("no.Such", source.now()),
    lambda source: source.next_attempt("no.Such"),
    lambda source: source.drop_feed("no.Such"),
    lambda source: source.cursors("no.Such"),
    lambda source: source.begin_consumer("c", "no.Such", {}, by="test"),
    lambda source: source.drop_consumer("c", "no.Such"),
)


def test_an_unknown_feed_is_named(bench: Bench) -> None:
    """Every call says which feed is unknown."""
    for call in CALLS:
        with pytest.raises(FeedNotFoundError, match=r"no\.Such"):
            call(bench.source)


def test_unusual_table_names_work(bench: Bench) -> None:
    """Names are quoted everywhere."""
    for name in (
        "Ünïcode.Événement",
        'myservice.quo"te',
        "myservice.semi;colon'",
        "with space.and more",
    ):
        other = set_up(bench.engine, replace(bench.table, name=name))
        keys = other.write(2)
        assert other.keys() == keys
        other.seal()
        assert len(other.fed()) == 2
        other.source.drop_feed(name)


def test_attempt_tokens_only_grow(bench: Bench) -> None:
    """Each is above all before it, and above what the manifests show; feeds count for themselves."""
    source = bench.source
    drawn = [source.next_attempt(bench.feed), source.next_attempt(bench.feed)]
    drawn += [source.next_attempt(bench.feed, above=50), source.next_attempt(bench.feed, above=3)]
    assert drawn[0] < drawn[1] < drawn[2] < drawn[3]
    assert drawn[2] > 50
