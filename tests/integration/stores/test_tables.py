# SPDX-License-Identifier: Apache-2.0
"""Tables of Delta Lake and Iceberg in an object store, by the storage options that exports have."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_changefeed.exceptions import TableConflictError, TableError, TransientError
from tests.integration.stores.proxy import Answer, Request
from tests.integration.stores.servers import Server
from tests.unit.tables.exports import COLUMNS, Export, change, in_order, paths, unit

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
    where = f"{export.path}/{export.feed}"
    if export.format == "delta":
        from deltalake import DeltaTable

        options = {
            "aws_access_key_id": "tests",
            "aws_secret_access_key": "tests-only",
            "aws_region": "us-east-1",
            "aws_endpoint_url": endpoint,
            "aws_allow_http": "true",
        }
        return in_order(DeltaTable(where, storage_options=options).to_pyarrow_table().to_pylist())
    from pyiceberg.catalog import load_catalog

    properties = {
        "s3.endpoint": endpoint,
        "s3.access-key-id": "tests",
        "s3.secret-access-key": "tests-only",
        "s3.region": "us-east-1",
    }
    catalog = load_catalog(**export.library.named["catalog"], **properties)
    try:
        return in_order(catalog.load_table(export.library.catalog_table).scan().to_arrow().to_pylist())
    finally:
        catalog.close()


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
    assert export.table().unused(24) == []


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
        is_ours = request.method == "PUT" and request.path.endswith("/conditional-put")
        return Answer(200, {"ETag": '"1"'}) if is_ours else None

    table = delta.table()
    with s3_server.proxy.answering(ignore), pytest.raises(TableError, match="If-None-Match"):
        table.commit(table.look(), change([file]))
    assert table.look().version is None


@pytest.mark.parametrize(("status", "kind"), [(403, TableError), (503, TransientError)])
def test_a_store_that_does_not_answer_shows_no_secret(
    make: Make, s3_server: Server, status: int, kind: type[Exception]
) -> None:
    """Refused for good, or for now."""
    export = make(proxied=True)
    table = export.table()
    table.commit(table.look(), change([export.write(unit(0), 1)]))
    code = "AccessDenied" if status == 403 else "SlowDown"
    body = f"<Error><Code>{code}</Code><Message>tests-only</Message></Error>".encode()

    def refuse(request: Request) -> Answer | None:
        return Answer(status, {"Content-Type": "application/xml"}, body)

    with s3_server.proxy.answering(refuse), pytest.raises(kind) as caught:
        export.table().look()
    assert "tests-only" not in str(caught.value)
