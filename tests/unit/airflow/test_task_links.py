# SPDX-License-Identifier: Apache-2.0
"""The buttons of a task that exports, in Airflow's UI: they lead to its window on the page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from airflow.sdk import DAG

from airflow_changefeed.exceptions import InvalidWindowError
from airflow_changefeed.links.changefeed import CalendarLink, WindowLink
from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedToParquetOperator
from airflow_changefeed.version_compat import AirflowFailException
from tests.minors import dag_serialization, since
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.fakes import context
from tests.unit.airflow.test_group import Group
from tests.unit.airflow.test_operator import HOUR, operator

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.usefixtures("server", "database"),
    since("3.1", "the page that they lead to"),
]
WINDOW = {"conn_id": "changefeed_default", "dag_id": "orders", "at": "2013-01-01T00:00:00Z"}


def links(task: Any, task_id: str = "export", map_index: int = -1) -> list[str]:
    """Return what Airflow keeps of a task's links at its end, in their order."""
    key = SimpleNamespace(dag_id="orders", task_id=task_id, map_index=map_index)
    return [link.get_link(task, ti_key=key) for link in task.operator_extra_links]


def values(url: str) -> dict[str, str]:
    """Return what an address names."""
    return dict(parse_qsl(urlsplit(url).query))


def test_an_export_leads_to_its_window(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below Airflow's own address, where it is told."""
    task = operator(path, local_below=1000)
    task.execute(context(START, START + 2 * HOUR))
    calendar, window = links(task)
    assert values(calendar) == WINDOW | {"task_id": "export"}
    assert values(window) == WINDOW | {"task_id": "export", "show": "window"}
    assert urlsplit(calendar).path == "/changefeed/"
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://host/below")
    assert links(task)[0].startswith("https://host/below/changefeed/?")
    # Its window is known before anything is read, so an export that fails leads there, too.
    wrong = operator(path, local_below=1000, shards=["9"], unit="PT7H")
    with pytest.raises(AirflowFailException, match=InvalidWindowError.__name__):
        wrong.execute(context(START, START + HOUR))
    assert values(links(wrong)[0]) == WINDOW | {"task_id": "export"}


def test_a_task_of_which_the_page_has_no_calendar_leads_nowhere(path: str) -> None:
    """One that never began, one that is mapped, one that exports batches, and one that plans many feeds."""
    mapped = operator(path, local_below=1000)
    assert links(mapped) == ["", ""]
    mapped.execute(context(START, START + HOUR))
    assert links(mapped, map_index=3) == ["", ""]
    batch = operator(f"{path}-batch", unit=None, mode="batch", local_below=1000)
    batch.execute(context())
    assert links(batch) == ["", ""]
    many = Group(f"{path}-many", feed="", feeds="*")
    many.plan()
    assert links(many.tasks["plan"]) == ["", ""]


def test_a_group_leads_to_the_calendar_of_its_plan(path: str) -> None:
    """From its first task and from its last."""
    group = Group(path)
    group.plan()
    group.submit()
    group.finish()
    plan, finish = (links(group.tasks[name], f"export.{name}") for name in ("plan", "finish"))
    assert plan == finish
    assert values(plan[0]) == WINDOW | {"task_id": "export.plan"}


def test_airflow_knows_the_buttons_of_a_serialized_task(path: str) -> None:
    """By their names; the addresses are XComs."""
    with DAG("orders") as dag:
        ChangefeedToParquetOperator(task_id="export", feed=FEED, path=path, consumer=CONSUMER)
    serialization = dag_serialization()
    read = serialization.from_dict(serialization.to_dict(dag)).get_task("export")
    assert {link.name: link.xcom_key for link in read.operator_extra_links} == {
        link.name: link.xcom_key for link in (CalendarLink(), WindowLink())
    }
