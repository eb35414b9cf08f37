# SPDX-License-Identifier: Apache-2.0
"""What is missing, running, or before a beginning: all who show it say the same, and what they looked at."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.models import Variable

from airflow_changefeed import export_dataset
from airflow_changefeed.core.cursor import variable_key
from airflow_changefeed.core.values import format_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.cursors import cursors
from airflow_changefeed.cursors.moves import accept_beginning
from airflow_changefeed.exceptions import ManifestError
from airflow_changefeed.export.parts import run_here
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.hooks.changefeed import AirflowVariables, ChangefeedHook
from airflow_changefeed.output.store import ExportStore
from tests.identity import DATABASE
from tests.minors import since
from tests.unit.airflow.page import CONN_ID, Visitor, add_run, remove_runs, store_export
from tests.unit.airflow.test_cli import run
from tests.unit.export.flights import CONSUMER, FEED, START, Flights, hours

pytestmark = since("3.1", "the page")

HOUR = timedelta(hours=1)
DAG_ID, OTHER = "everywhere", "everywhere_by_hand"
AGE = timedelta(days=365 * 100)


class Place:
    """A feed of eight hours with an event each, whose DAG began with the fourth one."""

    def __init__(self, folder: Path) -> None:
        self.flights = Flights.create(folder / "flights.db")
        for hour in range(8):
            self.flights.add(1, hour)
        self.path = str(folder / "out")

    @property
    def store(self) -> ExportStore:
        """The output, as it is now."""
        return ExportStore(self.path, FEED)

    def export(self, first: int, last: int, *, path: str | None = None) -> None:
        """Run the DAG for some hours, as its task does."""
        store = self.store if path is None else ExportStore(path, FEED)
        windows = hours(first, last)
        name = f"{DAG_ID}/run/export/1"
        request = ExportRequest(FEED, store.path, CONSUMER, name, windows)
        plan = make_plan(self.flights.source, store, request)
        run_here(self.flights.source, store, plan, lambda line: None)
        done = {0: [window.range for window in windows]}
        cursors.advance(self.flights.source, AirflowVariables(), CONSUMER, FEED, done, by=name)

    def lose(self, hour: int) -> None:
        """Remove the manifest and the files of an hour, as somebody with access to the output may."""
        (window,) = hours(hour, hour + 1)
        store = self.store
        (unit,) = [unit for unit in store.units(0) if unit.window == window]
        manifest = store.read(unit)
        assert manifest is not None
        store.remove_manifest(unit, manifest.attempt)
        shutil.rmtree(store.layout.placed(unit, manifest.attempt))

    @property
    def consumer(self) -> dict[str, Any]:
        """What the list of feeds says of the consumer."""
        (feed,) = Visitor("OP").ask("feeds", conn_id=CONN_ID)["feeds"]
        ((found,),) = (feed["consumers"],)
        return dict(found)

    def calendar(self, role: str = "OP") -> dict[str, Any]:
        """What the calendar of the DAG says."""
        of = {"conn_id": CONN_ID, "dag_id": DAG_ID, "task_id": "export"}
        return dict(Visitor(role).ask("windows", **of, at=format_time(START)))

    def states(self) -> str:
        """The states of the eight hours, by their first letters."""
        cells = {cell["start"]: cell["state"] for cell in self.calendar()["cells"]}
        return "".join(cells[format_time(START + hour * HOUR)][0] for hour in range(8))

    def freshness(self) -> Any:
        """What freshness says of the consumer."""
        (found,) = ChangefeedHook(CONN_ID).freshness(AGE).consumers
        return found


@pytest.fixture
def place(server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Give the feed, its connection, and two DAGs that export it into one output."""
    made = Place(tmp_path)
    connection = json.dumps({"conn_type": "sqlite", "host": str(made.flights.path)})
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", connection)
    for dag_id in (DAG_ID, OTHER):
        task = {"feed": FEED, "consumer": CONSUMER, "path": made.path}
        store_export(dag_id, "0 * * * *", task, start_date=START, end_date=START + 8 * HOUR)
    yield made
    Variable.delete(variable_key(DATABASE, CONSUMER, FEED))
    remove_runs(DAG_ID, OTHER)


def command(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return all that a command says."""
    run(*words, "--conn-id", CONN_ID)
    out, err = capsys.readouterr()
    return str(out + err)


def faces(place: Place, capsys: pytest.CaptureFixture[str]) -> dict[str, Callable[[], str]]:
    """Return what each face that reads no files says of the consumer."""
    return {
        "page": lambda: json.dumps(place.consumer),
        "freshness": lambda: str(place.freshness()),
        "status": lambda: command(capsys, "status", "--feed", FEED),
        "status --max-age": lambda: command(capsys, "status", "--feed", FEED, "--max-age", "36500d"),
        "cursor show": lambda: command(capsys, "cursor", "show", CONSUMER, "--feed", FEED),
    }


def test_a_window_that_is_gone_is_missing_in_all_faces(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that read no files say that the cursor says so, and after a look at the files what it found."""
    place.export(3, 8)
    place.lose(5)
    with pytest.raises(ManifestError) as error:
        export_dataset(place.path, FEED, START + 3 * HOUR, START + 8 * HOUR)
    (missing,) = error.value.facts["missing"]
    assert missing.unit.window == Window(START + 5 * HOUR, START + 6 * HOUR)
    assert place.states() == "bbbccmcc"
    assert [one["start"] for one in place.calendar()["missing"]][:1] == [format_time(START + 5 * HOUR)]

    assert place.consumer["files"] is None
    for name, say in faces(place, capsys).items():
        assert name == "page" or "by its cursor" in say() or "complete by the cursor" in say(), name
    assert "the files of its output have not been checked yet" in command(capsys, "status", "--feed", FEED)

    found = command(capsys, "doctor", "--feed", FEED, "--path", place.path, "-o", "plain")
    assert "window-missing" in found
    assert str(missing) in found
    for name, say in faces(place, capsys).items():
        assert format_time(START + 5 * HOUR) in say(), name
    assert place.consumer["files"]["missing"] == 1
    *_, warning = place.freshness().warnings
    assert (warning.kind.code, place.freshness().is_fresh) == ("window-missing", True)

    place.export(5, 6)
    answer = Visitor("OP").send("check_files", {}, conn_id=CONN_ID, dag_id=DAG_ID, task_id="export")
    assert answer["missing"] == 0
    for name, say in faces(place, capsys).items():
        assert format_time(START + 5 * HOUR) not in say(), name
    assert "files last checked at" in command(capsys, "status", "--feed", FEED)


def test_what_runs_is_not_missing_whichever_dag_runs_it(place: Place) -> None:
    """Of all DAGs that export for the consumer into the output."""
    place.export(3, 5)
    add_run(OTHER, START + 5 * HOUR)
    assert place.states() == "bbbccrmm"
    assert [one["start"] for one in place.calendar()["missing"]][:1] == [format_time(START + 6 * HOUR)]
    at = format_time(START + 5 * HOUR)
    window = Visitor("OP").ask("window", conn_id=CONN_ID, dag_id=DAG_ID, task_id="export", at=at)
    assert window["state"] == "running"
    start = place.consumer["strip"]["start"]
    assert start < at
    assert "running" in place.consumer["strip"]["states"]


def test_events_before_the_beginning_are_named_until_they_are_exported(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """How many, since when, and the run that exports them; the backfill ends it, in any order."""
    for hour in range(3, 8):
        place.export(hour, hour + 1)
    what = f"3 events from {format_time(START)} on lie before the beginning of consumer {CONSUMER}"
    backfill = (
        f"airflow backfill create --dag-id {DAG_ID} --from-date {format_time(START)} "
        f"--to-date {format_time(START + 3 * HOUR - timedelta(seconds=1))}"
    )
    looks = faces(place, capsys) | {
        "doctor": lambda: command(capsys, "doctor", "--feed", FEED, "-o", "plain")
    }
    for name, say in looks.items():
        assert what in say(), name
        assert backfill in say(), name
    assert place.freshness().counts.events_before == 3
    before = place.consumer["before"]
    assert (before["start"], before["end"]) == (format_time(START), format_time(START + 3 * HOUR))

    place.export(0, 1)
    place.export(2, 3)
    assert place.freshness().counts.events_before == 1
    assert "1 event from 2013-01-01T01:00:00Z on lies before" in place.consumer["before"]["what"]
    place.export(1, 2)
    for name, say in looks.items():
        assert "beginning of consumer" not in say(), name
    assert place.consumer["before"] is None
    assert place.states() == "cccccccc"


def test_an_output_that_was_moved_away_is_named(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """By the log of the run that begins a new one, doctor and the page, with both ways on."""
    place.export(3, 6)
    assert "begins with this run" not in caplog.text
    elsewhere = str(tmp_path / "mistyped")
    place.export(6, 8, path=elsewhere)
    begun = f"The export of feed {FEED} in {elsewhere} begins with this run"
    for words in (begun, "Move the files back", f"airflow backfill create --dag-id {DAG_ID}"):
        assert words in caplog.text
    found = command(capsys, "doctor", "--feed", FEED, "--path", elsewhere, "-o", "plain")
    for words in ("output-begins-later", format_time(START + 6 * HOUR), "Move the files back", "backfill"):
        assert words in found
    assert "window-missing" not in found
    assert place.calendar()["begins_later"] is None
    shutil.move(place.path, tmp_path / "elsewhere")
    shutil.move(elsewhere, place.path)
    for words in (format_time(START + 6 * HOUR), "Move the files back", "backfill"):
        assert words in place.calendar()["begins_later"]


def test_a_consumer_that_chose_its_beginning_is_not_asked_again(place: Place) -> None:
    """A person who moved the cursor there, or accepted it, knows what lies before."""
    place.export(3, 8)
    source = place.flights.source
    accept_beginning(source, AirflowVariables(), CONSUMER, FEED, by="anna", why="not needed")
    assert place.consumer["before"] is None
    assert place.freshness().warnings == ()
