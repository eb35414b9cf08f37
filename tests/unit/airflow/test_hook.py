# SPDX-License-Identifier: Apache-2.0
"""The hook: which file a connection means, what cannot be used, and when a Variable is certainly absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import (
    ErrorResponse,
    GetVariable,
    OKResponse,
    PutVariable,
    VariableResult,
)

from airflow_changefeed.connections.output import catalog_properties, storage_options
from airflow_changefeed.connections.spark import spark_connection
from airflow_changefeed.core.cursor import variable_key
from airflow_changefeed.exceptions import (
    ConnectionNotUsableError,
    InvalidArgumentError,
    SourceUnavailableError,
    TerminalError,
)
from airflow_changefeed.hooks.changefeed import AirflowVariables, ChangefeedHook
from tests.identity import DATABASE
from tests.minors import since
from tests.unit.airflow.conftest import FEED, KEY


def test_every_form_of_a_connection_means_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Airflow's SqliteHook opens, and the forms on which it stumbles; always absolute."""
    for connection, path in (
        ('{"conn_type": "sqlite", "host": "/data/feeds.db"}', "/data/feeds.db"),
        ('{"conn_type": "sqlite", "host": "/data/my feeds%20.db"}', "/data/my feeds%20.db"),
        ('{"conn_type": "sqlite", "schema": "/data/feeds.db"}', "/data/feeds.db"),
        ("sqlite://%2Fdata%2Ffeeds.db", "/data/feeds.db"),
        ("sqlite:///data/feeds.db", "/data/feeds.db"),
        ("sqlite:////data/feeds.db", "/data/feeds.db"),
        ("sqlite://%2Fdata%2Ffeeds.db?lock_timeout=5", "/data/feeds.db"),
        ('{"conn_type": "sqlite", "host": "data/feeds.db"}', str(Path("data/feeds.db").absolute())),
    ):
        monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", connection)
        assert ChangefeedHook().describe()["path"] == path


def test_the_lock_timeout_is_the_tasks_then_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook's argument wins, then the connection's extra, then 60 seconds; a wrong one is named."""

    def extra(value: Any) -> str:
        return json.dumps({"conn_type": "sqlite", "host": "/x.db", "extra": {"lock_timeout": value}})

    monkeypatch.setenv("AIRFLOW_CONN_PLAIN", '{"conn_type": "sqlite", "host": "/x.db"}')
    monkeypatch.setenv("AIRFLOW_CONN_EXTRA", extra(5))
    assert ChangefeedHook("plain").describe()["lock_timeout"] == 60
    assert ChangefeedHook("extra").describe()["lock_timeout"] == 5
    assert ChangefeedHook("extra", lock_timeout=7).describe()["lock_timeout"] == 7
    monkeypatch.setenv("AIRFLOW_CONN_URI", "sqlite:///x.db?lock_timeout=0.5")
    assert ChangefeedHook("uri").describe()["lock_timeout"] == 0.5
    said = "'extra': lock_timeout in its extra must be a number of seconds, 0 to 8640"
    for value in ("x", "-1", "nan", "1e9", True, "true", [5]):
        monkeypatch.setenv("AIRFLOW_CONN_EXTRA", extra(value))
        with pytest.raises(InvalidArgumentError, match=said):
            ChangefeedHook("extra").describe()


def test_a_connection_that_leads_nowhere_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is opened by default where there is none; an empty one means no file, not one in memory."""
    with pytest.raises(ConnectionNotUsableError, match=r"'nowhere'.*airflow connections add"):
        ChangefeedHook("nowhere").source()
    monkeypatch.setenv("AIRFLOW_CONN_EMPTY", '{"conn_type": "sqlite"}')
    with pytest.raises(ConnectionNotUsableError, match="host"):
        ChangefeedHook("empty").source()


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_connection_is_none_and_that_is_said(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """As a secrets backend may answer for one that it does not have."""
    monkeypatch.setenv("AIRFLOW_CONN_BLANK", text)
    for find in (
        lambda: ChangefeedHook("blank").source(),
        lambda: storage_options("s3://lake/feeds", "blank"),
        lambda: catalog_properties("blank"),
        lambda: spark_connection("blank"),
    ):
        with pytest.raises(
            TerminalError, match=r"'blank'.*an empty text in a secrets backend counts as no connection"
        ):
            find()


def test_another_type_is_refused_with_those_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection of another kind of database holds no feeds, and its secrets are not told."""
    connection = {"conn_type": "postgres", "host": "db", "login": "me", "password": "hunter2"}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(connection))
    with pytest.raises(ConnectionNotUsableError, match=r"'postgres'.*sqlite") as caught:
        ChangefeedHook("other").source()
    assert "hunter2" not in f"{caught.value!r} {caught.value.facts} {ChangefeedHook('other')!r}"


def test_a_connection_can_be_tested(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test names the feeds, or the reason why there are none."""
    assert ChangefeedHook().test_connection() == (True, f"1 feed: {FEED}")
    monkeypatch.setenv("AIRFLOW_CONN_GONE", '{"conn_type": "sqlite", "host": "/nowhere/feeds.db"}')
    is_good, why = ChangefeedHook("gone").test_connection()
    assert not is_good
    assert "/nowhere/feeds.db" in why


@pytest.mark.airflow
def test_variables_outside_tasks_are_the_servers(server: None) -> None:
    """Commands and pages read and write Airflow's own table."""
    variables = AirflowVariables()
    assert variables.get(KEY) is None
    variables.set(KEY, "one")
    variables.set(KEY, "two")
    assert variables.get(KEY) == "two"
    variables.delete(KEY)
    variables.delete(KEY)
    assert variables.get(KEY) is None


@since("3.2", "the API of processes without a server")
@pytest.mark.airflow
@pytest.mark.usefixtures("server")
def test_a_variable_of_any_name_passes_the_api_of_airflow_dags_test() -> None:
    """It takes a Variable's name raw into a URL, where letters beyond ASCII fail."""
    from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor

    client = InProcessTestSupervisor._api_client()
    every = "".join(map(chr, range(33, 127))).replace(":", "")
    for consumer, feed in (("Zürich", "東京.Fahrten 😀"), (every, "shop.Größen"), ("a\u00a0b", "İ")):
        key = variable_key(DATABASE, consumer, feed)
        client.variables.set(key, feed)
        found = client.variables.get(key)
        client.variables.delete(key)
        assert (found.key, found.value) == (key, feed)


class Supervisor:
    """The supervisor's end of a task's pipe: the outermost edge."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.is_broken_for: tuple[type, ...] = ()

    def send(self, message: Any) -> Any:
        """Answer as Airflow's API does."""
        if isinstance(message, self.is_broken_for):
            broken = ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 503})
            if isinstance(message, GetVariable):
                return broken
            raise AirflowRuntimeError(broken)
        if isinstance(message, GetVariable):
            if message.key in self.values:
                return VariableResult(key=message.key, value=self.values[message.key])
            return ErrorResponse(error=ErrorType.VARIABLE_NOT_FOUND)
        if isinstance(message, PutVariable):
            self.values[message.key] = message.value or ""
        return OKResponse(ok=True)


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """A task's surroundings."""
    supervisor = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    return supervisor


def test_variables_in_tasks_go_through_the_supervisor(supervisor: Supervisor) -> None:
    """A task reads, writes, and knows what is absent."""
    variables = AirflowVariables()
    assert variables.get(KEY) is None
    variables.set(KEY, "one")
    assert variables.get(KEY) == "one"


def test_an_error_is_not_absence(supervisor: Supervisor) -> None:
    """An API that fails for a moment looks like "not found" to a task; asking it again tells."""
    supervisor.values[KEY] = "one"
    supervisor.is_broken_for = (GetVariable,)
    with pytest.raises(SourceUnavailableError, match="could not read"):
        AirflowVariables().get(KEY)


def test_a_value_that_comes_late_is_not_absence(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Airflow did not give at first, and has, is no reason to begin anew."""
    supervisor.values[KEY] = "one"
    monkeypatch.setattr("airflow.sdk.Variable.get", lambda key, default: default)
    with pytest.raises(SourceUnavailableError, match=r"did not return its value.*fernet_key"):
        AirflowVariables().get(KEY)


def test_a_variable_that_is_created_while_it_is_read_is_read(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody publishes it between the look that finds nothing and the one that confirms it."""
    variables = AirflowVariables()
    send, looks = supervisor.send, iter(range(9))

    def send_late(message: Any) -> Any:
        answer = send(message)
        if isinstance(message, GetVariable) and next(looks) == 0:
            supervisor.values[KEY] = "one"
        return answer

    monkeypatch.setattr(supervisor, "send", send_late)
    assert variables.get(KEY) == "one"


@pytest.mark.parametrize("change", ["set", "delete"])
def test_a_change_that_airflow_only_logs_is_a_transient_error(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Before 3.3 a task is not told that a Variable was neither written nor deleted."""
    supervisor.values[KEY] = "one"
    monkeypatch.setattr("airflow_changefeed.hooks.changefeed.AIRFLOW_V_3_3_PLUS", False)
    monkeypatch.setattr(f"airflow.sdk.Variable.{change}", lambda key, *value, **more: None)
    with pytest.raises(SourceUnavailableError, match="did not take the change"):
        getattr(AirflowVariables(), change)(*{"set": (KEY, "two"), "delete": (KEY,)}[change])


def test_a_variable_that_cannot_be_written_is_a_transient_error(supervisor: Supervisor) -> None:
    """A retry may help, and the rows have it."""
    supervisor.is_broken_for = (PutVariable,)
    with pytest.raises(SourceUnavailableError, match=r"could not write|did not take the change"):
        AirflowVariables().set(KEY, "one")
