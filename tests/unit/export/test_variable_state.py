# SPDX-License-Identifier: Apache-2.0
"""What an export's Variable is beside the rows, and a database that went back."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.cursors import cursors
from airflow_changefeed.cursors.recovery import VariableKind
from airflow_changefeed.exceptions import CursorBeyondFeedError, CursorEditedError
from tests.unit.export.consumers import (
    CONSUMER,
    FEED,
    KEY,
    Warehouse,
    end_of,
    places,
)


def back_up_and_go_on(warehouse: Warehouse) -> None:
    """Export on after a backup, and restore it: the database is older than the Variable and the output."""
    path = warehouse.source.database.path
    warehouse.source.close()
    shutil.copy(path, f"{path}.backup")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('insert into "nyc.Flight" values (1000)')
        connection.execute('insert into "changefeed.outbox:nyc.Flight" (shard_id, id) values (0, 1000)')
        connection.commit()
    until = warehouse.source.now()
    warehouse.source.seal(FEED, until)
    done = {0: [UlidRange(end_of(5), Ulid.floor(until).previous())]}
    cursors.advance(warehouse.source, warehouse.variables, CONSUMER, FEED, done, by="test")
    warehouse.source.close()
    shutil.copy(f"{path}.backup", path)


def set_back(value: dict[str, Any]) -> None:
    """Set a cursor back by hand."""
    value["shards"]["0"].update(ulid=str(end_of(0)))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda warehouse: None, VariableKind.EQUAL),
        (lambda warehouse: warehouse.variables.values.clear(), VariableKind.MISSING),
        (lambda warehouse: warehouse.edit(set_back), VariableKind.EDITED),
        (lambda warehouse: warehouse.variables.set(KEY, "{"), VariableKind.UNREADABLE),
        (lambda warehouse: warehouse.edit(lambda it: it.update(schema_version=99)), VariableKind.NEWER),
    ],
)
@pytest.mark.usefixtures("exported")
def test_a_variable_is_told_for_what_it_is(
    warehouse: Warehouse, change: Callable[[Warehouse], None], kind: VariableKind
) -> None:
    """Looking changes nothing; only what a person has to decide is a problem."""
    change(warehouse)
    before = dict(warehouse.variables.values)
    state = warehouse.state()
    assert (state.key, state.kind) == (KEY, kind)
    assert (state.problem is None) == (kind in (VariableKind.EQUAL, VariableKind.MISSING))
    assert warehouse.variables.values == before


@pytest.mark.usefixtures("exported")
def test_an_old_value_of_the_variable_is_older(warehouse: Warehouse) -> None:
    """A whole value of a week ago is what a crash leaves, too: it is published again by itself."""
    old = warehouse.variables.values[KEY]
    warehouse.advance(6)
    warehouse.variables.values[KEY] = old
    assert warehouse.state().kind is VariableKind.OLDER
    warehouse.move(warehouse.plan(end_of(1)))
    assert warehouse.places == {0: end_of(1), 1: end_of(1)}
    warehouse.check_published()


def test_a_restored_database_is_explained_and_resolved(
    warehouse: Warehouse, exported: list[CursorRow]
) -> None:
    """Its clock is behind the cursor that was published: nothing moves until a person chooses."""
    back_up_and_go_on(warehouse)
    ahead = warehouse.published.shards[0].ulid
    with pytest.raises(CursorEditedError, match="restored to an earlier state") as refused:
        warehouse.move(warehouse.plan(end_of(1)))
    assert f"the Variable has {ahead}" in refused.value.message
    assert f"the database has {end_of(5)}" in refused.value.message
    with pytest.raises(CursorBeyondFeedError, match=r"beyond the shard's high-water time.*publish"):
        warehouse.adopt()
    with pytest.raises(CursorBeyondFeedError, match="restored to an earlier state"):
        warehouse.plan(ahead, 0)
    warehouse.publish()
    assert places(warehouse.move(warehouse.plan(end_of(1))))[0] == end_of(1)
    warehouse.check_published()
