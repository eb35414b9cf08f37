# SPDX-License-Identifier: Apache-2.0
"""Handlers that cannot be found or called."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_changefeed.consumers.handlers import ProcedureFailedError, ProcedureHandler, load_handler
from airflow_changefeed.exceptions import HandlerError
from tests.unit.consumers.feeds import CAPTURE, PLAIN, Shop

HERE = "tests.unit.consumers.test_handlers"
NO_FUNCTION = 3


def good(event: Any, connection: Any) -> None:
    """Do nothing."""


def one_argument(event: Any) -> None:
    """Take no connection."""


def three_arguments(event: Any, connection: Any, other: Any) -> None:
    """Take too much."""


async def later(event: Any, connection: Any) -> None:
    """Do nothing when it is called."""


def test_a_function_is_found_by_its_name(shop: Shop) -> None:
    """Or is given as it is."""
    assert load_handler(f"{HERE}:good", shop.source, is_batch=False).__name__ == "good"
    assert load_handler(good, shop.source, is_batch=True) is good


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        ("good", "is not a handler"),
        (f"{HERE}:", "is not a handler"),
        ("no.such.module:f", "cannot be imported"),
        (f"{HERE}:missing", "has no missing"),
        (f"{HERE}:NO_FUNCTION", "cannot be called"),
        (f"{HERE}:one_argument", r"cannot be called with \(event, connection\)"),
        (f"{HERE}:three_arguments", r"cannot be called with \(event, connection\)"),
        (f"{HERE}:later", "is async or a generator"),
        ("procedure:dbo.handle", "has no procedures"),
    ],
)
def test_a_handler_that_cannot_be_called_is_refused(shop: Shop, handler: str, says: str) -> None:
    """With the reason, before anything is consumed."""
    with pytest.raises(HandlerError, match=says):
        load_handler(handler, shop.source, is_batch=False)


class Cursor:
    """The outermost edge: a cursor of SQL Server whose procedure returns a number."""

    def __init__(self, result: int | None) -> None:
        self.asked: list[tuple[str, tuple[Any, ...]]] = []
        self.results = [([("own",)], [(5,)]), ([("changefeed_result",)], [(result,)])]

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def cursor(self) -> Cursor:
        """Return itself, as its connection would."""
        return self

    def execute(self, sql: str, values: tuple[Any, ...]) -> None:
        """Note what was asked."""
        self.asked.append((sql, values))

    @property
    def description(self) -> Any:
        """Of the present result."""
        return self.results[0][0]

    def fetchall(self) -> Any:
        """Of the present result."""
        return self.results[0][1]

    def nextset(self) -> bool:
        """Go to the next result."""
        if len(self.results) > 1:
            del self.results[0]
            return True
        return False


class Server:
    """The outermost edge: a source that says that it is SQL Server."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shop.source, name)

    def describe(self) -> dict[str, Any]:
        """Say so."""
        return {"type": "mssql"}


def test_a_procedure_gets_the_event_as_the_envelope_has_it(shop: Shop) -> None:
    """Exactly, and with its metadata."""
    shop.create()
    shop.insert('say "ü"\n')
    handler = ProcedureHandler("[sales].[on change]", Server(shop))
    with shop.consumer() as consumer:
        event = consumer.get()
    handler(event, cursor := Cursor(0))
    ((sql, values),) = cursor.asked
    assert "[sales].[on change]" in sql
    assert values[:5] == (CAPTURE, "0", str(event.id), "shop.t", "add")
    assert values[5] is None
    assert json.loads(values[6]) == {"id": 4, "data": 'say "ü"\n'}
    assert values[7:] == (event.transaction, 1, event.metadata[2])


@pytest.mark.parametrize("result", [1, -6, None])
def test_a_procedure_that_returns_anything_but_0_has_failed(shop: Shop, result: int | None) -> None:
    """Nothing at all, too."""
    shop.create(feed=PLAIN)
    shop.order("a")
    handler = ProcedureHandler("handle", Server(shop))
    with shop.consumer(feed=PLAIN) as consumer:
        event = consumer.get()
    cursor = Cursor(result)
    with pytest.raises(ProcedureFailedError, match="0 is success"):
        handler([event], cursor)
    assert json.loads(cursor.asked[0][1][3]) == {"id": 1, "data": "a", "price": 1.5}


def test_a_name_that_is_none_is_refused(shop: Shop) -> None:
    """Before anything is consumed."""
    with pytest.raises(HandlerError, match="is not a procedure"):
        ProcedureHandler("a.", Server(shop))
