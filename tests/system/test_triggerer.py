# SPDX-License-Identifier: Apache-2.0
"""Many deferred sensors in one real triggerer, which is killed and started again."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.system.airflow_settings import MARKER, AirflowSettings
from tests.system.fork_server import WITHOUT_SERVER, ForkedProcess, ForkServer
from tests.system.processes import end_all, processes_of, tail, wait_for

pytestmark = [pytest.mark.ci, pytest.mark.airflow]

SENSORS = 40
FEED = "nyc.Flight"
START = datetime(2013, 1, 1, tzinfo=timezone.utc)
FAR = datetime(2099, 1, 1, tzinfo=timezone.utc)
#: Seconds after which the triggerer says that its loop was blocked: its default, 0.2, is what a busy machine
#: takes from any loop, and Airflow's own imports take from it when a triggerer starts.
BLOCKED = 2.0
#: Seconds for which a look waits for a database that hangs: in the loop, it would block it for too long.
HANGING = 3.0
DAG_FILE = f"""
from airflow.sdk import DAG
from airflow_changefeed import ChangefeedSensor

with DAG("waiting", schedule=None):
    ChangefeedSensor.partial(
        task_id="wait", feed={FEED!r}, lock_timeout={HANGING}, deferrable=True, poke_interval=1
    ).expand(
        consumer=[f"reader{{number}}" for number in range({SENSORS})]
    )
"""


class Home:
    """An Airflow home with a worker, and triggerers that follow each other; no scheduler, no API server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "triggerer.log"
        self.triggerer: ForkedProcess | None = None
        (folder / "dags").mkdir(parents=True)
        (folder / "dags" / "waiting.py").write_text(DAG_FILE)
        self.environment = AirflowSettings(
            home=folder,
            dags=folder / "dags",
            url="http://127.0.0.1:1",
            sqlalchemy_url=f"sqlite:///{folder}/airflow.db",
            secret="signs the tokens of this home",
            extra={
                # A triggerer that was killed is followed by the next one when its heartbeat is this old.
                "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
                "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "3",
                "AIRFLOW__TRIGGERER__BLOCKED_MAIN_THREAD_WARNING_THRESHOLD": str(BLOCKED),
            },
        ).environment()
        self.server = ForkServer(self.environment, folder / "server.log", *WITHOUT_SERVER)
        self.run("airflow", "db", "migrate")

    def fork(self, *arguments: str, log: Path) -> ForkedProcess:
        """Start ``python -m``."""
        return self.server.start(*arguments, environment=self.environment, folder=self.folder, log=log)

    def run(self, *arguments: str) -> str:
        """Run ``python -m``, and return its last line."""
        log = self.folder / "worker.log"
        assert self.fork(*arguments, log=log).wait(timeout=200) == 0, tail(log)
        return log.read_text().splitlines()[-1]

    def work(self, step: str, **arguments: object) -> dict[str, Any]:
        """Let the worker run what may be run, and return what it says of its tasks."""
        outcome: dict[str, Any] = json.loads(
            self.run("tests.system.deferred", step, json.dumps({"dag_id": "waiting", **arguments}))
        )
        return outcome

    def start(self) -> None:
        """Start a triggerer, and wait until it runs all triggers."""
        expected = len(self.triggers()) + SENSORS
        self.triggerer = triggerer = self.fork("airflow", "triggerer", "--skip-serve-logs", log=self.log)

        def check() -> None:
            assert triggerer.poll() is None, tail(self.log)

        wait_for(
            "the triggerer",
            lambda: len(self.triggers()) == expected,
            timeout=60,
            check=check,
            explain=lambda: tail(self.log),
        )

    def triggers(self) -> list[Path]:
        """Return the logs of the triggers that were started; another triggerer gives them other names."""
        return list((self.folder / "logs").rglob("*.trigger.*.log"))

    def wait_for_words(self, words: str) -> None:
        """Wait until a trigger's log has these words."""
        wait_for(
            f"the words {words!r} in the log of a trigger",
            lambda: any(words in path.read_text() for path in self.triggers()),
            timeout=60,
            explain=lambda: tail(self.log),
        )

    def states(self) -> Counter[str]:
        """Return how many tasks are in which state."""
        with closing(sqlite3.connect(self.folder / "airflow.db", timeout=60)) as connection:
            return Counter(state for (state,) in connection.execute("select state from task_instance"))

    def kill(self) -> None:
        """End the triggerer as a machine does that fails."""
        left = end_all(
            lambda: [
                process
                for process in processes_of(MARKER, str(self.folder))
                if process.pid != self.server.process.pid
            ],
            grace=0,
        )
        assert left == []

    def close(self) -> None:
        """End all that was started."""
        self.kill()
        self.server.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home of which no process is left behind."""
    with closing(Home(tmp_path / "home")) as home:
        yield home


@pytest.fixture
def feed(tmp_path: Path) -> str:
    """A feed whose one event all readers have seen."""
    path = str(tmp_path / "feeds.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('create table "nyc.Flight" (id integer primary key)')
    source = SqliteFeedSource(path)
    source.set_up_feed(FEED)
    write(path, 1)
    source.drain(FEED)
    for number in range(SENSORS):
        source.begin_consumer(f"reader{number}", FEED, {0: head(path)}, by="test")
    return path


@contextmanager
def hanging(path: str) -> Iterator[None]:
    """Let a database answer nobody."""
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as connection:
        # Of a file in WAL mode, only this keeps readers out.
        connection.execute("pragma locking_mode = exclusive")
        connection.execute("begin exclusive")
        yield


def write(path: str, number: int) -> None:
    """Write an event."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('insert into "nyc.Flight" values (?)', (number,))
        connection.execute(
            'insert into "changefeed.outbox:nyc.Flight" (shard_id, id) values (0, ?)', (number,)
        )
        connection.commit()


def head(path: str) -> Ulid:
    """Return the place of the last event."""
    (status,) = SqliteFeedSource(path).shards(FEED)
    assert status.head is not None
    return status.head


def test_forty_deferred_sensors_wait_in_one_triggerer_and_survive_its_death(home: Home, feed: str) -> None:
    """They do not block its loop, also when their database hangs; they wait on in the next one, and go on."""
    outcome = home.work("begin", host=feed, window=[START.isoformat(), FAR.isoformat()])
    assert Counter(outcome["states"]) == {"deferred": SENSORS}
    with hanging(feed):
        home.start()
        home.wait_for_words("LockTimeoutError")
    home.kill()
    home.start()
    assert home.states() == {"deferred": SENSORS}
    after = head(feed)
    write(feed, 2)
    wait_for(
        "the events of all triggers",
        lambda: home.states() == {"scheduled": SENSORS},
        timeout=60,
        explain=lambda: f"{home.states()} {tail(home.log)}",
    )
    outcome = home.work("go_on")
    assert Counter(outcome["states"]) == {"success": SENSORS}
    new_events = {"0": {"after": str(after), "head": None, "outbox": True}}
    assert outcome["results"] == {str(index): new_events for index in range(SENSORS)}
    log = home.log.read_text()
    assert log.count("Starting the triggerer") == 2
    # Airflow's own warning.
    assert "async thread was blocked" not in log, log
