# SPDX-License-Identifier: Apache-2.0
"""
Metrics: what is sent when, and the table, the alert rules and the dashboard that name them.

A recorder stands in for Airflow's stats; ``make observability`` reads them from a socket.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.doctor.cursors import ConsumerCounts, FeedCounts
from airflow_changefeed.doctor.freshness import check_freshness
from airflow_changefeed.exceptions import SupersededError
from airflow_changefeed.observability import metrics
from airflow_changefeed.operators.changefeed import ChangefeedFreshnessOperator
from airflow_changefeed.output.commit import Commit
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.version_compat import AirflowFailException
from tests.conftest import PROJECT
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.fakes import InProcessOperator, context
from tests.unit.airflow.freshness import FEED as SHOP_FEED
from tests.unit.airflow.freshness import OTHER, Shop, late
from tests.unit.airflow.test_group import Group
from tests.unit.lake.stock import CAPTURE, Stock

HOUR = timedelta(hours=1)
TAGS = {"feed": FEED, "consumer": CONSUMER}
PAGE = (PROJECT / "docs/reference/metrics.md").read_text(encoding="utf-8")
MONITORING = PROJECT / "docs/reference/monitoring"
TYPES = {"gauge": "gauge", "counter": "incr", "timing": "timing"}


class Recorder:
    """Airflow's stats, which keep what they are given."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Any, dict[str, str]]] = []

    def _keep(self, kind: str, name: str, value: Any, tags: dict[str, str]) -> None:
        self.sent.append((kind, name, value, tags))

    def incr(self, stat: str, count: int = 1, *, tags: dict[str, str]) -> None:
        """Keep a counter."""
        self._keep("incr", stat, count, tags)

    def gauge(self, stat: str, value: float, *, tags: dict[str, str]) -> None:
        """Keep a gauge."""
        self._keep("gauge", stat, value, tags)

    def timing(self, stat: str, dt: timedelta, *, tags: dict[str, str]) -> None:
        """Keep a duration."""
        self._keep("timing", stat, dt, tags)

    def values(self, name: str) -> list[Any]:
        """Return what was sent under a name."""
        return [value for _, sent, value, _ in self.sent if sent == name]


@pytest.fixture
def stats(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Stand in for Airflow's stats."""
    recorder = Recorder()
    monkeypatch.setattr(metrics, "Stats", recorder)
    return recorder


def export(path: Path, **more: Any) -> InProcessOperator:
    """Return an export that writes by itself."""
    given = {"task_id": "export", "feed": FEED, "path": str(path), "consumer": CONSUMER, "local_below": 100}
    return InProcessOperator(**{**given, **more})


@pytest.mark.airflow
@pytest.mark.usefixtures("server", "database")
def test_an_export_sends_rows_bytes_seal_and_frontier(tmp_path: Path, stats: Recorder) -> None:
    """Each with feed and consumer as tags; a gap ahead does not move the frontier."""
    result = export(tmp_path).execute(context(START, START + HOUR))
    assert stats.values(metrics.EXPORTED_ROWS) == [result["rows"]] == [6]
    assert stats.values(metrics.EXPORTED_BYTES) == [result["bytes"]]
    assert stats.values(metrics.FRONTIER) == [(START + HOUR).timestamp()]
    (took,) = stats.values(metrics.SEAL_DURATION)
    assert timedelta(0) < took < HOUR
    export(tmp_path).execute(context(START + 2 * HOUR, START + 3 * HOUR))
    assert stats.values(metrics.FRONTIER)[1:] == [(START + HOUR).timestamp()]
    assert all(tags == TAGS for *_, tags in stats.sent)


def test_an_attempt_that_lost_is_counted(stats: Recorder) -> None:
    """Its error passes; others are not counted."""
    for error in (SupersededError("a newer attempt counts"), ValueError("no")):
        with pytest.raises(type(error)), metrics.counting_superseded(FEED, CONSUMER):
            raise error
    assert stats.sent == [("incr", metrics.SUPERSEDED, 1, TAGS)]


LOST = [("incr", metrics.SUPERSEDED, 1, TAGS)]


def lost(stats: Recorder) -> list[Any]:
    """Return what was sent of attempts that lost."""
    return [each for each in stats.sent if each[1] == metrics.SUPERSEDED]


def overtake(monkeypatch: pytest.MonkeyPatch, newer: Callable[[], object]) -> None:
    """Let a newer attempt at the same hour run when the next job is about to commit."""
    whole = Commit.add

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(Commit, "add", whole)
        newer()
        return whole(*args)

    monkeypatch.setattr(Commit, "add", overtaken)


@pytest.mark.airflow
@pytest.mark.usefixtures("server", "database")
def test_what_a_newer_attempt_overtakes_is_counted(
    tmp_path: Path, stats: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and the newer one is not; of a group by its last task, which reads the job's error."""
    path = tmp_path / "one"
    overtake(monkeypatch, lambda: export(path).execute(context(START, START + HOUR, attempt=2)))
    with pytest.raises(SupersededError, match="newer attempts count"):
        export(path).execute(context(START, START + HOUR))
    assert lost(stats) == LOST
    stats.sent.clear()
    group, newer = Group(str(tmp_path / "group")), Group(str(tmp_path / "group"))
    group.plan()
    newer.plan()
    overtake(monkeypatch, newer.submit)
    with pytest.raises(SupersededError, match="newer attempts count"):
        group.submit()
    assert lost(stats) == []
    with pytest.raises(AirflowFailException, match="SupersededError"):
        group.finish()
    assert lost(stats) == LOST


@pytest.mark.airflow
@pytest.mark.usefixtures("server", "database")
def test_a_group_that_finds_a_newer_attempt_in_its_table_is_counted(tmp_path: Path, stats: Recorder) -> None:
    """As after a restore of the output from a backup, with a table's log that is newer."""
    output, backup = tmp_path / "out", tmp_path / "backup"
    group = Group(str(output), table_format="delta")
    for _ in range(2):
        group.plan()
        group.submit()
        group.finish()
        if not backup.exists():
            shutil.copytree(output, backup)
            first = dict(group.pushed)
    (log,) = output.rglob("_delta_log")
    shutil.copytree(log, backup / log.relative_to(output), dirs_exist_ok=True)
    shutil.rmtree(output)
    backup.rename(output)
    group.pushed = first
    with pytest.raises(SupersededError, match="or the manifests were restored"):
        group.finish()
    assert lost(stats) == LOST


@pytest.mark.airflow
@pytest.mark.usefixtures("server")
def test_a_watch_sends_what_it_has_read(database: str, tmp_path: Path, stats: Recorder) -> None:
    """Also of a consumer that is late, before it fails."""
    export(tmp_path).execute(context(START, START + HOUR))
    export(tmp_path).execute(context(START + 2 * HOUR, START + 3 * HOUR))
    with closing(SqliteFeedSource(database)) as source:
        create_consumer(source, ConsumerSpec("billing", FEED), "earliest", by="tests")
    hint = int((time.time() - 7200) * 1000)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("insert into \"nyc.Flight\" values (100, 'JFK')")
        connection.execute(
            'insert into "changefeed.outbox:nyc.Flight" (shard_id, time_hint, id) values (0, ?, 100)', [hint]
        )
        connection.commit()
    kinds = {name: kind for kind, name, *_ in stats.sent}
    stats.sent.clear()
    task = ChangefeedFreshnessOperator(task_id="watch", max_age=HOUR)
    ti = SimpleNamespace(xcom_push=lambda **_: None)
    with pytest.raises(AirflowFailException, match="FreshnessError"):
        task.execute({"ti": ti})
    sent = {(name, tags.get("consumer")): value for _, name, value, tags in stats.sent}
    assert sent[metrics.FRONTIER, CONSUMER] == (START + HOUR).timestamp()
    assert sent["changefeed.consumer.shards_behind", CONSUMER] == 2
    assert sent["changefeed.consumer.windows_missing", CONSUMER] == 2
    assert sent["changefeed.consumer.leases_held", CONSUMER] == 0
    assert sent["changefeed.consumer.dead_letters", "billing"] == 0
    assert sent["changefeed.consumer.events_behind", CONSUMER] == 30
    assert sent["changefeed.consumer.events_behind", "billing"] == 36
    assert sent["changefeed.feed.outbox_rows", None] == 1
    assert 7200 <= sent["changefeed.feed.outbox_age", None] < 7300
    assert ("changefeed.feed.gaps_open", None) not in sent
    kinds |= {name: kind for kind, name, *_ in stats.sent}
    assert len(kinds) > 8
    assert kinds == {name: TYPES[rows()[name]] for name in kinds}, "the table of the page has the types"


def test_the_open_gaps_of_a_capture_are_counted(tmp_path: Path) -> None:
    """Feeds that are no captures have none to count."""
    stock = Stock.create(tmp_path, rows=1)
    stock.source.create_consumer(ConsumerSpec("mailer", CAPTURE), begin=Ulid.MIN, starts={}, by="test")
    counts = check_freshness(stock.source, None, lambda _: None, HOUR).feeds
    assert counts == {CAPTURE: FeedCounts(0, 0.0, 0)}


def test_a_feed_that_nobody_reads_is_counted(shop: Shop) -> None:
    """Nobody drains it either, so its outbox grows."""
    late(shop)
    shop.write(1, 3 * HOUR, OTHER, drain=False)
    found = check_freshness(shop.source, None, lambda _: None, HOUR)
    assert [one.feed for one in found.consumers] == [SHOP_FEED]
    assert found.feeds[OTHER].outbox_rows == 1
    assert 3 * 3600 <= found.feeds[OTHER].outbox_age < 3 * 3600 + 60


def test_stats_that_fail_are_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task goes on."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(metrics, "Stats", SimpleNamespace(incr=fail, gauge=fail))
    metrics.exported(FEED, CONSUMER, 1, 2, START)
    assert len(caplog.records) == 3
    assert "Metric changefeed.export.rows was not sent: OSError: no route to host" in caplog.text


@given(st.lists(st.text(alphabet="aé ü_,/东", max_size=4) | st.text(alphabet="xy", min_size=89), unique=True))
def test_names_that_differ_have_tags_that_differ(names: list[str]) -> None:
    """Else the values of two feeds would be mixed under one name."""
    tags = [metrics.tag(name) for name in names]
    assert len(set(tags)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_.\-/]{0,90}", tag) for tag in tags)


def test_a_tag_fits_every_flavour() -> None:
    """Airflow drops a metric with other characters, or of more than 250."""
    assert metrics.tag("shop.Order") == "shop.Order"
    assert metrics.tag("a b,c=d|é").startswith("a_b_c_d__-")
    longest = max([metrics.SEAL_DURATION, metrics.SUPERSEDED, *NAMES], key=len)
    assert len(f"airflow.{longest},feed=,consumer=") + 2 * len(metrics.tag("x" * 200)) <= 250


def rows() -> dict[str, str]:
    """Read the table: name to type."""
    return dict(re.findall(r"^\| `(changefeed\.[a-z_.]+)` \| [^|]+ \| (\w+) \|", PAGE, re.MULTILINE))


NAMES = {
    metrics.FRONTIER,
    metrics.EXPORTED_ROWS,
    metrics.EXPORTED_BYTES,
    metrics.SEAL_DURATION,
    metrics.DRAIN_DURATION,
    metrics.SUPERSEDED,
    *(metrics.CONSUMER + field.name for field in fields(ConsumerCounts)),
    *(metrics.FEED + field.name for field in fields(FeedCounts)),
}


def test_the_table_has_every_metric() -> None:
    """And no other."""
    assert set(rows()) == NAMES


def used(text: str) -> set[str]:
    """Return the metrics that an expression of Prometheus names, as the table spells them."""
    prometheus = {}
    for name, kind in rows().items():
        # Quantiles of a duration are NaN between two exports.
        for suffix in ("_sum", "_count") if kind == "timing" else ("",):
            prometheus[f"airflow_{name.replace('.', '_')}{suffix}"] = name
    found = re.findall(r"\bairflow_changefeed_[a-z_]+", text)
    assert set(found) <= set(prometheus), set(found) - set(prometheus)
    return {prometheus[name] for name in found}


def test_the_alert_rules_name_metrics_of_the_table() -> None:
    """Each has an expression, a severity and a text."""
    content = yaml.safe_load((MONITORING / "prometheus-rules.yml").read_text(encoding="utf-8"))
    (group,) = content["groups"]
    for rule in group["rules"]:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["alert"].startswith("Changefeed")
        assert used(rule["expr"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"])


def test_the_dashboard_names_metrics_of_the_table() -> None:
    """Each panel has a title, a place of its own, and a query; together they show all but a few."""
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    shown = set()
    for panel in panels:
        assert panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            shown |= used(target["expr"])
    assert shown == set(rows())


def test_the_exporter_forgets_every_gauge_and_nothing_else() -> None:
    """Its mapping gives gauges the names that they have without it; one star stands for a part of a name."""
    mapping = yaml.safe_load((MONITORING / "statsd-exporter.yml").read_text(encoding="utf-8"))["mappings"]
    renamed = {}
    for rule in mapping:
        assert rule["ttl"] == "6h"
        pattern = re.escape(rule["match"]).replace(r"\*", "([^.]+)")
        target = re.sub(r"\$\{(\d+)\}", r"\\\1", rule["name"])
        for name, kind in rows().items():
            if kind == rule["match_metric_type"] and re.fullmatch(pattern, f"airflow.{name}"):
                renamed[name] = re.sub(pattern, target, f"airflow.{name}")
    gauges = {name for name, kind in rows().items() if kind == "gauge"}
    assert renamed == {name: f"airflow_{name.replace('.', '_')}" for name in gauges}
