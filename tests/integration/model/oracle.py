# SPDX-License-Identifier: Apache-2.0
"""
What a run of the model broke: the oracles of the contract suite, and those that only a model can ask.

docs/explanation/promises.md says what they hold.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.contract import oracles as contract
from tests.integration.contract.oracles import History, SealRecord, Transaction
from tests.integration.model.database import SHARDS, Database
from tests.integration.model.drains import DrainRun, SealRun, drain
from tests.integration.model.readers import Content, RangeRun, ReaderRun
from tests.integration.model.scheduler import Run
from tests.integration.model.writers import ulid_text

_CONTRACT: tuple[Callable[[History], list[str]], ...] = (
    contract.feed_is_complete,
    contract.ulids_ascend,
    contract.commits_are_in_order,
    contract.transactions_keep_their_order,
    contract.transactions_stay_together,
    contract.sealed_windows_stay,
    contract.given_ulids_are_kept,
)


def _feed(database: Database, shard: int) -> Content:
    """Return all that a shard's feed ever held, in the order of its ULIDs."""
    rows = database.tables["feed"] | database.purged
    return tuple((ulid, key) for (owner, ulid), key in sorted(rows.items()) if owner == shard)


def readers_skip_nothing(run: Run, database: Database) -> list[str]:
    """Up to its cursor, a reader has read exactly the feed, in its order."""
    complaints = []
    for reader in (fact for fact in run.facts if isinstance(fact, ReaderRun) and fact.content):
        expected = [row for row in _feed(database, reader.shard) if row[0] <= reader.content[-1][0]]
        if list(reader.content) != expected:
            complaints.append(f"{reader.name} read {list(reader.content)} of {expected}")
    return complaints


def ranges_are_whole(run: Run, database: Database) -> list[str]:
    """A range that was not refused is whole."""
    complaints = []
    for reading in (fact for fact in run.facts if isinstance(fact, RangeRun)):
        expected = tuple(row for row in _feed(database, reading.shard) if row[0] <= reading.upto)
        if reading.content != expected:
            complaints.append(
                f"{reading.name} took {list(reading.content)} for the whole of {list(expected)}"
            )
    return complaints


def drains_end(run: Run, _: Database) -> list[str]:
    """A drain scans twice, and twice more for each transaction that was open when it began, at most."""
    # A commit in the middle of a scan may change that scan and the next one.
    return [
        f"{fact.name} scanned {fact.scans} times, {fact.open_writers} writers were open when it began"
        for fact in run.facts
        if isinstance(fact, DrainRun) and fact.scans > 2 + 2 * fact.open_writers
    ]


def seals_drain_what_is_committed(run: Run, _: Database) -> list[str]:
    """What was committed when a seal began is in the feed at its end."""
    return [
        f"{fact.name} left {sorted(fact.left)}"
        for fact in run.facts
        if isinstance(fact, SealRun) and fact.left
    ]


def rows_keep_their_order(_: Run, database: Database) -> list[str]:
    """What tells of one row of a user's table comes in the order in which that row was locked."""
    place = {key: (shard, ulid) for shard in SHARDS for ulid, key in _feed(database, shard)}
    complaints = []
    for row, events in database.locked_rows.items():
        found = [place[key] for key in events if key in place]
        complaints += [] if found == sorted(found) else [f"row {row}: locked for {events}, but {found}"]
    return complaints


_OWN = (readers_skip_nothing, ranges_are_whole, drains_end, seals_drain_what_is_committed)


def judge(run: Run) -> dict[str, list[str]]:
    """Return the complaints about a run that has come to its end, by promise."""
    if run.waiting():
        return {"nobody_waits_for_ever": [f"{name} {label}" for name, label in run.waiting().items()]}
    run.finish()
    database = run.database
    assert isinstance(database, Database)
    found = {oracle.__name__: oracle(run, database) for oracle in _OWN}
    for shard in SHARDS:
        run.run_alone(drain(database, "the last drain", shard))
    history = History(
        transactions=tuple(fact for fact in run.facts if isinstance(fact, Transaction)),
        rows=frozenset(),
        feed={shard: [(ulid_text(ulid), key) for ulid, key in _feed(database, shard)] for shard in SHARDS},
        seals=tuple(fact for fact in run.facts if isinstance(fact, SealRecord)),
    )
    found |= {oracle.__name__: oracle(history) for oracle in _CONTRACT}
    found |= {rows_keep_their_order.__name__: rows_keep_their_order(run, database)}
    return {promise: complaints for promise, complaints in found.items() if complaints}
