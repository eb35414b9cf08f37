# SPDX-License-Identifier: Apache-2.0
"""What an export's Variable is beside the rows, and a database that went back."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.cursors import cursors, recovery
from airflow_changefeed.cursors.recovery import VariableKind, variable_state
from airflow_changefeed.exceptions import CursorBeyondFeedError, CursorEditedError
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.unit.export.consumers import (
    CONSUMER,
    FEED,
    KEY,
    Variables,
    advance,
    assert_published,
    edit,
    end_of,
    places,
    published,
)
from tests.unit.export.moves import move, plan


def back_up_and_go_on(source: SqliteFeedSource, variables: Variables) -> None:
    """Export on after a backup, and restore it: the database is older than the Variable and the output."""
    path = source.database.path
    source.close()
    shutil.copy(path, f"{path}.backup")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('insert into "nyc.Flight" values (1000)')
        connection.execute('insert into "changefeed.outbox:nyc.Flight" (shard_id, id) values (0, 1000)')
        connection.commit()
    until = source.now()
    source.seal(FEED, until)
    done = {0: [UlidRange(end_of(5), Ulid.floor(until).previous())]}
    cursors.advance(source, variables, CONSUMER, FEED, done, by="test")
    source.close()
    shutil.copy(f"{path}.backup", path)


def forget(variables: Variables) -> None:
    """Delete it."""
    variables.values.clear()


def nonsense(variables: Variables) -> None:
    """Write what is no cursor."""
    variables.values[KEY] = "{"


def of_newer_version(variables: Variables) -> None:
    """Write what a later version of this package might."""
    edit(variables, lambda value: value.update(schema_version=99))


def a_week_ago(variables: Variables) -> None:
    """Set a cursor back by hand."""
    edit(variables, lambda value: value["shards"]["0"].update(ulid=str(end_of(0))))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda _: None, VariableKind.EQUAL),
        (forget, VariableKind.MISSING),
        (a_week_ago, VariableKind.EDITED),
        (nonsense, VariableKind.UNREADABLE),
        (of_newer_version, VariableKind.NEWER),
    ],
)
def test_a_variable_is_told_for_what_it_is(
    source: SqliteFeedSource,
    variables: Variables,
    exported: list[CursorRow],
    change: Callable[[Variables], None],
    kind: VariableKind,
) -> None:
    """Looking changes nothing; only what a person has to decide is a problem."""
    change(variables)
    before = dict(variables.values)
    state = variable_state(source, variables, CONSUMER, FEED)
    assert (state.key, state.kind) == (KEY, kind)
    assert (state.problem is None) == (kind in (VariableKind.EQUAL, VariableKind.MISSING))
    assert variables.values == before


def test_an_old_value_of_the_variable_is_older(
    source: SqliteFeedSource, variables: Variables, exported: list[CursorRow]
) -> None:
    """A whole value of a week ago is what a crash leaves, too: it is published again by itself."""
    old = variables.values[KEY]
    advance(source, variables, 6)
    variables.values[KEY] = old
    assert variable_state(source, variables, CONSUMER, FEED).kind is VariableKind.OLDER
    rows = move(source, variables, plan(source, end_of(1)))
    assert places(rows) == {0: end_of(1), 1: end_of(1)}
    assert_published(source, variables)


def test_a_restored_database_is_explained_and_resolved(
    source: SqliteFeedSource, variables: Variables, exported: list[CursorRow]
) -> None:
    """Its clock is behind the cursor that was published: nothing moves until a person chooses."""
    back_up_and_go_on(source, variables)
    ahead = published(variables).shards[0].ulid
    with pytest.raises(CursorEditedError, match="restored to an earlier state") as refused:
        move(source, variables, plan(source, end_of(1)))
    assert f"the Variable has {ahead}" in refused.value.message
    assert f"the database has {end_of(5)}" in refused.value.message
    with pytest.raises(CursorBeyondFeedError, match=r"beyond the shard's high-water time.*publish"):
        recovery.adopt(source, variables, CONSUMER, FEED, by="anna")
    with pytest.raises(CursorBeyondFeedError, match="restored to an earlier state"):
        plan(source, ahead, 0)
    recovery.publish(source, variables, CONSUMER, FEED)
    assert places(move(source, variables, plan(source, end_of(1))))[0] == end_of(1)
    assert_published(source, variables)
