# SPDX-License-Identifier: Apache-2.0
"""Tables of Delta Lake and Iceberg in an object store, by the storage options that exports have."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_changefeed.exceptions import TableConflictError, TableError, TransientError
from airflow_changefeed.formats.base import TableState
from tests.stores.proxy import Answer, Request
from tests.stores.servers import Server
from tests.stores.strangers import library
from tests.unit.formats.exports import COLUMNS, Export, change, in_order, paths, unit

Make = Callable[..., Export]


@pytest.fixture(params=["delta", "iceberg"])
def make(request: pytest.FixtureRequest, s3_server: Server, tmp_path: Path) -> Make:
    """What makes new exports with a table of each format in turn."""

    def call(*, proxied: bool = False, **more: Any) -> Export:
        options = {**(s3_server.options if proxied else s3_server.direct), **more}
        name = uuid.uuid4().hex
        return Export(request.param, tmp_path / name, f"{s3_server.root}/{name}", options)

    return call


@pytest.fixture
def delta(s3_server: Server, tmp_path: Path) -> Export:
    """A new export with a Delta table, behind the proxy."""
    return Export("delta", tmp_path, f"{s3_server.root}/{uuid.uuid4().hex}", s3_server.options)


def rows(export: Export) -> list[dict[str, Any]]:
    """Read a table as strangers do, with options of their own library."""
    endpoint = export.options.get("endpoint_url") or export.options["client_kwargs"]["endpoint_url"]
    data = f"{export.path}/{export.feed}"
    return in_order(library(export.format, export.folder, data, endpoint).read().to_pylist())


@pytest.mark.parametrize("is_nested", [False, True])
def test_units_are_added_replaced_and_read(make: Make, is_nested: bool) -> None:
    """Wherever the options name the endpoint, with new columns between."""
    export = make()
    if is_nested:
        options = dict(export.options)
        client = {**options["client_kwargs"], "endpoint_url": options.pop("endpoint_url")}
        export = Export(export.format, export.folder, export.path, {**options, "client_kwargs": client})
    files = [export.write(unit(hour), hour + 1, 3) for hour in (0, 1)]
    table = export.table()
    table.commit(table.look(), change(files))
    wider = pa.schema([*COLUMNS, ("more", pa.string())])
    newer = export.write(unit(0), 5, [{"number": 1, "more": "x"}], wider)
    table.commit(table.look(), change([newer], [files[0].path], wider))
    assert paths(export.table().look()) == sorted([newer.path, files[1].path])
    second = [{**row, "more": None} for row in export.expected(files[1:])]
    assert rows(export) == in_order([*second, *export.expected([newer])])
    assert export.table().unused(timedelta(hours=24)) == []


def test_one_of_two_wins(make: Make) -> None:
    """At the creation, and when both add to the same version."""
    export = make()
    tables = [export.table(), export.table()]
    for hour in (0, 1):
        states = [table.look() for table in tables]
        files = [export.write(unit(hour), 2 * hour + number) for number in (1, 2)]
        tables[0].commit(states[0], change(files[:1]))
        with pytest.raises(TableConflictError):
            tables[1].commit(states[1], change(files[1:]))
    assert sorted(key[2] for key in export.table().look().files) == [1, 3]


def test_a_commit_without_an_answer_is_a_conflict_that_landed(delta: Export, s3_server: Server) -> None:
    """The store made the commit and then failed; asked again, it says that the file exists."""
    table = delta.table()
    table.commit(table.look(), change([delta.write(unit(0), 1)]))
    seen, file = table.look(), delta.write(unit(1), 2)

    answers = []

    def fail(request: Request, answer: Answer) -> Answer:
        if request.method != "PUT" or "_delta_log" not in request.path:
            return answer
        answers.append(answer.status)
        return Answer(500) if answer.status == 200 else answer

    with s3_server.proxy.answering(change=fail), pytest.raises(TableConflictError):
        table.commit(seen, change([file]))
    assert answers == [200, 412]
    assert file.path in paths(delta.table().look())


def test_a_store_that_ignores_conditions_is_refused(delta: Export, s3_server: Server) -> None:
    """No table is created there: the second of two commits would overwrite the first."""
    file = delta.write(unit(0), 1)

    def ignore(request: Request) -> Answer | None:
        is_ours = request.method == "PUT" and "/conditional-put" in request.path
        return Answer(200, {"ETag": '"1"'}) if is_ours else None

    table = delta.table()
    with s3_server.proxy.answering(ignore), pytest.raises(TableError, match="If-None-Match"):
        table.commit(table.look(), change([file]))
    assert table.look().version is None


def test_two_who_check_the_store_at_once_do_not_mind_each_other(delta: Export, s3_server: Server) -> None:
    """Each tries a name of its own: who is done removes what another one would be refused for."""
    other = Export("delta", delta.folder / "other", delta.path, s3_server.direct)
    first, second = delta.write(unit(0), 1), other.write(unit(1), 2)
    asked: list[str] = []

    def overtake(request: Request, answer: Answer) -> Answer:
        if "/conditional-put" in request.path and request.method == "PUT":
            asked.append(request.path)
            if len(asked) == 1:
                other.table().commit(TableState(), change([second]))
        return answer

    table = delta.table()
    with s3_server.proxy.answering(change=overtake), pytest.raises(TableConflictError):
        table.commit(TableState(), change([first]))
    assert len(asked) == 2
    table.commit(table.look(), change([first]))
    assert paths(table.look()) == sorted([first.path, second.path])
    assert not [name for name in delta.store.files.sizes(delta.store.files.root) if "conditional-put" in name]


def refusing(status: int, code: str) -> Callable[[Request], Answer]:
    """Return what answers each request with an error."""
    body = f"<Error><Code>{code}</Code><Message>tests-only</Message></Error>".encode()
    return lambda request: Answer(status, {"Content-Type": "application/xml"}, body)


@pytest.mark.parametrize(
    ("status", "code", "kind"), [(403, "AccessDenied", TableError), (503, "SlowDown", TransientError)]
)
def test_a_store_that_does_not_answer_shows_no_secret(
    make: Make, s3_server: Server, status: int, code: str, kind: type[Exception]
) -> None:
    """Refused for good, or for now."""
    export = make(proxied=True)
    table = export.table()
    table.commit(table.look(), change([export.write(unit(0), 1)]))
    with s3_server.proxy.answering(refusing(status, code)), pytest.raises(kind) as caught:
        export.table().look()
    assert "tests-only" not in str(caught.value)


def test_keys_that_have_expired_are_others_the_next_time(delta: Export, s3_server: Server) -> None:
    """Deltalake gets keys as they are, also those that renew themselves."""
    table = delta.table()
    table.commit(table.look(), change([delta.write(unit(0), 1)]))
    seen = table.look()
    with s3_server.proxy.answering(refusing(400, "ExpiredToken")), pytest.raises(TransientError):
        table.look()

    def expired(request: Request) -> Answer | None:
        is_commit = request.method == "PUT" and "_delta_log" in request.path
        return refusing(400, "ExpiredToken")(request) if is_commit else None

    file = delta.write(unit(1), 2)
    with s3_server.proxy.answering(expired), pytest.raises(TableConflictError, match="ExpiredToken"):
        table.commit(seen, change([file]))
    assert table.look() == seen
    table.commit(seen, change([file]))
    assert file.path in paths(table.look())
