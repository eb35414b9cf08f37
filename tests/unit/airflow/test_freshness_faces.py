# SPDX-License-Identifier: Apache-2.0
"""Freshness as users meet it: both operators, the notifier, ``status --max-age`` and its page."""

from __future__ import annotations

import json
import shlex
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, BaseNotifier

from airflow_changefeed.exceptions import (
    InvalidArgumentError,
    SourceUnavailableError,
)
from airflow_changefeed.notifications.freshness import ChangefeedFreshnessNotifier
from airflow_changefeed.operators.changefeed import (
    ChangefeedFreshnessBranchOperator,
    ChangefeedFreshnessOperator,
)
from airflow_changefeed.version_compat import AirflowFailException
from tests.examples import examples, run_example
from tests.unit.airflow.commands import Commands
from tests.unit.airflow.fakes import context
from tests.unit.airflow.feeds import play
from tests.unit.airflow.freshness import EXPORT, FEED, HOUR, OTHER, Shop, late

# ---- operators


def watch(**arguments: Any) -> tuple[Any, Any]:
    """Run the operator; return its result or failure, and the rows that it pushed."""
    pushed: dict[str, Any] = {}
    given = context()
    given["ti"].xcom_push = lambda key, value: pushed.update({key: value})
    task = ChangefeedFreshnessOperator(**{"task_id": "watch", "max_age": 2 * HOUR, **arguments})
    try:
        return task.execute(given), pushed["return_value"]
    except (AirflowFailException, SourceUnavailableError) as failure:
        return failure, pushed.get("return_value")


@pytest.mark.usefixtures("server")
def test_the_operator_succeeds_with_rows(shop: Shop) -> None:
    """One for each consumer, as JSON."""
    shop.export(9, 0)
    result, pushed = watch(max_age=7200)
    assert result == pushed == json.loads(json.dumps(result))
    (row,) = result
    assert (row["feed"], row["consumer"], row["is_fresh"], row["reasons"]) == (FEED, EXPORT, True, [])


@pytest.mark.usefixtures("server")
def test_a_late_consumer_fails_the_task_at_once(shop: Shop) -> None:
    """Named with age and reason, and the rows are the task's result."""
    failure, rows = watch(feed=late(shop) and FEED)
    assert isinstance(failure, AirflowFailException)
    assert str(failure).startswith("FreshnessError: consumers: 1, older than 2:00:00: 1")
    assert f"feed {FEED}, consumer {EXPORT}: complete by its cursor until" in str(failure)
    assert "Airflow no longer has DAG hourly" in str(failure)
    assert [reason["code"] for reason in rows[0]["reasons"]] == ["no-run"]
    shop.source.acquire_leases(EXPORT, FEED, [0], holder="pod-7", seconds=7200, all_or_none=True)
    # The command can be copied as it is.
    for words in ("airflow-changefeed consumer revoke", "--conn-id changefeed_default"):
        assert words in str(watch()[0])


@pytest.mark.usefixtures("server")
def test_a_paused_dag_is_found_in_airflow(shop: Shop) -> None:
    """By the DAG that the cursor names; then its last run, if it is not paused."""
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))
        session.flush()
        session.merge(DagModel(dag_id="hourly", bundle_name="tests", is_paused=True, is_stale=False))
    try:
        assert "dag-paused: " in str(watch(feed=late(shop) and FEED)[0])
    finally:
        with create_session() as session:
            session.delete(session.get(DagModel, "hourly"))


def test_a_database_that_is_away_is_transient_and_is_what_a_notifier_sends(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow retries the task; the notification has no secrets, and must not fail for it."""

    def feeds(source: object) -> None:
        raise SourceUnavailableError("mssql://anna:canary@db/shop did not answer")

    monkeypatch.setattr(play(monkeypatch), "feeds", feeds)
    failure, rows = watch()
    assert (type(failure), rows) == (SourceUnavailableError, None)
    assert send(max_age=7200) == "SourceUnavailableError: mssql://***@db/shop did not answer"


def test_wrong_arguments_are_refused_when_the_dag_is_parsed() -> None:
    """With what may be given; all that is wrong is named at once."""
    length = r"max_age must be a length of time above 0 .*\(a timedelta, seconds, .*\), not 0"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"max_age": 0}, length),
        ({"max_age": -HOUR}, "max_age must be"),
        ({"max_age": "2 hours"}, "max_age must be"),
        ({"max_age": float("nan")}, "max_age must be"),
        ({"feed": []}, "feed is empty"),
        ({"feed": 7}, "feed must be names or patterns"),
        ({"consumer": "a:b"}, "consumer 'a:b' is not a valid name"),
        ({"changefeed_conn_id": ""}, "changefeed_conn_id is missing"),
    ]
    for arguments, message in cases:
        with pytest.raises(InvalidArgumentError, match=message):
            watch(**arguments)
    with pytest.raises(InvalidArgumentError, match=r"notifier must be .*max_age must be"):
        ChangefeedFreshnessNotifier(notifier="slack", max_age=0)  # type: ignore[arg-type]


def test_names_are_templated() -> None:
    """They are checked once they are known."""
    task = ChangefeedFreshnessOperator(
        task_id="watch", max_age=HOUR, feed="{{ params.feed }}", consumer="{{ params.consumer }}"
    )
    task.render_template_fields({"params": {"feed": FEED, "consumer": EXPORT}})
    assert (task.feed, task.consumer) == (FEED, EXPORT)


class TaskInstance(SimpleNamespace):
    """As much of a task instance as a branch uses."""

    map_index = -1
    pushed: dict[str, Any]

    def xcom_push(self, key: str, value: Any) -> None:
        """Keep it."""
        self.pushed[key] = value


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(("last", "followed"), [(0, ["on"]), (4, ["page"])])
def test_the_branch_follows_freshness(shop: Shop, last: int, followed: list[str]) -> None:
    """The tasks of the other branch are skipped; the rows are an XCom of their own."""
    from airflow.providers.standard.operators.empty import EmptyOperator

    from airflow_changefeed.version_compat import DownstreamTasksSkipped

    shop.export(9, last)
    with DAG("dag", schedule=None):
        task = ChangefeedFreshnessBranchOperator(
            task_id="fresh",
            max_age=2 * HOUR,
            follow_task_ids_if_fresh=["on"],
            follow_task_ids_if_stale=["page"],
        )
        task >> [EmptyOperator(task_id="on"), EmptyOperator(task_id="page")]
    ti = TaskInstance(task=task, dag_id="dag", run_id="run", task_id="fresh", try_number=1, pushed={})
    with pytest.raises(DownstreamTasksSkipped) as caught:
        task.execute({"ti": ti})
    assert {"on", "page"} - {name for name, _ in caught.value.tasks} == set(followed)
    assert [row["consumer"] for row in ti.pushed["consumers"]] == [EXPORT]


@pytest.mark.usefixtures("server")
def test_a_branch_that_cannot_tell_fails(shop: Shop) -> None:
    """Neither branch is right."""
    task = ChangefeedFreshnessBranchOperator(
        task_id="fresh", max_age=HOUR, follow_task_ids_if_fresh="on", follow_task_ids_if_stale="page"
    )
    with pytest.raises(AirflowFailException, match="ConsumerNotFoundError: nothing to watch"):
        task.choose_branch({"ti": TaskInstance(pushed={})})


# ---- notifier


class Pigeon(BaseNotifier):
    """A notifier as providers have them, with a template."""

    template_fields = ("text",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.sent: list[str] = []

    def notify(self, context: Any) -> None:
        """Send."""
        self.sent.append(self.text)


@pytest.mark.usefixtures("server")
def test_another_notifier_sends_the_text(shop: Shop) -> None:
    """In its own template, with the same words as the operator."""
    pigeon = Pigeon("{{ ti.task_id }} failed. {{ freshness }}")
    notifier = ChangefeedFreshnessNotifier(
        notifier=pigeon, max_age=2 * HOUR, feed="{{ params.feed }}", consumer=EXPORT
    )
    late(shop)
    notifier(context(params={"feed": FEED}, dag=None))
    (text,) = pigeon.sent
    assert text.startswith("export failed. consumers: 1, older than 2:00:00: 1\n")
    assert f"feed {FEED}, consumer {EXPORT}: complete by its cursor until" in text
    assert "warning no-run: " in text


def send(**arguments: Any) -> str:
    """Let a function send what the notifier says."""
    sent: list[str] = []
    notifier = ChangefeedFreshnessNotifier(
        notifier=lambda given: sent.append(given["freshness"]), **arguments
    )
    notifier(context(dag=None))
    (text,) = sent
    return text


@pytest.mark.usefixtures("server")
def test_a_function_sends_it_too(shop: Shop) -> None:
    """Also of consumers that are fresh: what failed need not have made them late."""
    shop.export(9, 0)
    words = f"feed {FEED}, consumer {EXPORT}: complete by its cursor until"
    assert send(max_age=7200).splitlines()[1].startswith(words)


# ---- command


@pytest.fixture
def commands(
    shop: Shop, server: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Commands:
    """Commands on the shop."""
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    return Commands(capsys)


def test_status_ends_with_1_if_a_consumer_is_late_and_with_0_if_none_is(
    shop: Shop, commands: Commands
) -> None:
    """With the reason; other feeds and consumers can be left out."""
    shop.export(9, 0, OTHER)
    (row,) = commands.rows("status", "--max-age", "2h")
    assert (row["feed"], row["consumer"], row["is_fresh"]) == (OTHER, EXPORT, True)
    assert "changefeed_default: consumers: 1, older than 2:00:00: 0" in commands.err
    files = "the files of its output have not been checked yet: airflow-changefeed doctor --feed"
    assert files in commands.err
    late(shop)
    shop.consumer()
    assert commands.run("status", "--max-age", "120m", "-o", "plain") == 1
    assert commands.out.split()[:6] == ["feed", "consumer", "complete", "until", "age", "fresh"]
    assert "no-run: its cursor has not moved since" in commands.out
    assert commands.run("status", "--max-age", "1d") == 0
    assert commands.run("status", "--max-age", "7200s", "--feed", OTHER) == 0
    assert commands.run("status", "--max-age", "2h", "--consumer", "billing") == 1
    assert commands.run("status", "--max-age", "2h", "--feed", "shop.*", "--consumer", EXPORT) == 1


def test_status_ends_with_2_if_it_cannot_tell(shop: Shop, commands: Commands) -> None:
    """But with 1 if something else is late."""
    assert "ConsumerNotFoundError: nothing to watch" in commands.fails("status", "--max-age", "2h")
    shop.export(9, 0)
    assert "no consumer 'lake'" in commands.fails("status", "--max-age", "2h", "--consumer", "lake")
    assert "FeedNotFoundError" in commands.fails("status", "--max-age", "2h", "--feed", "shop.Cart")
    assert "--consumer needs --max-age" in commands.fails("status", "--consumer", EXPORT)
    shop.sql(f'drop table "{OTHER}"')
    assert commands.run("status", "--max-age", "2h") == 2
    assert f"feed {OTHER}: FeedSetupError" in commands.err
    assert FEED in commands.out
    assert commands.run("status", "--max-age", "1s") == 1


# ---- the page


@pytest.mark.usefixtures("server")
def test_the_python_of_the_page_runs(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks find what is there; the mail has the text."""
    names: dict[str, Any] = {}
    for code in examples("how-to/when-something-is-wrong.md#notice-that-an-export-has-stopped", {}):
        run_example(code, names)
    shop.export(9, 0)
    pushed: dict[str, Any] = {}
    assert names["watch"].execute({"ti": TaskInstance(pushed=pushed)})[0]["is_fresh"]
    assert names["fresh"].choose_branch({"ti": TaskInstance(pushed=pushed)}) == "report"
    assert "<pre>consumers: 1, older than 2:00:00: 0" in mail(names["notify"], monkeypatch)


def mail(notify: ChangefeedFreshnessNotifier, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the mail that the page's notifier sends."""
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier

    sent: list[str] = []
    monkeypatch.setattr(SmtpNotifier, "notify", lambda self, context: sent.append(self.html_content))
    notify(context())
    return sent[0]


def test_the_commands_of_the_page_run(shop: Shop, commands: Commands) -> None:
    """As they stand there."""
    shop.export(9, 0)
    (block,) = examples("how-to/when-something-is-wrong.md#notice-that-an-export-has-stopped", {}, "bash")
    for line in block.splitlines():
        program, *words = shlex.split(line)
        assert program == "airflow-changefeed"
        assert commands.run_bare(words[0], *words[1:]) == 0, commands.err
