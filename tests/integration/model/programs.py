# SPDX-License-Identifier: Apache-2.0
"""Programs of the model: actors that run alone first, then actors in parallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.integration.model.database import Database
from tests.integration.model.drains import drain, seal
from tests.integration.model.readers import purge, read, read_range
from tests.integration.model.remedies import Remedies
from tests.integration.model.scheduler import Actor, Run
from tests.integration.model.writers import Release, write, write_serialized

#: Makes an actor from the database and its name.
Maker = Callable[[Database, str], Actor]


@dataclass(frozen=True, eq=False)
class Program:
    """
    Who runs.

    :param actors: in parallel, by name.
    :param before: alone, one after the other, before them.
    :param after: alone, after them.
    """

    actors: Mapping[str, Maker]
    before: Sequence[Maker] = ()
    after: Sequence[Maker] = ()

    def start(self, remedies: Remedies) -> Run:
        """Begin a run."""
        database = Database(remedies)
        actors = {name: maker(database, name) for name, maker in self.actors.items()}
        before = [maker(database, f"before {place}") for place, maker in enumerate(self.before)]
        after = [maker(database, f"after {place}") for place, maker in enumerate(self.after)]
        return Run(database, actors, before, after)


def maker(function: Callable[..., Actor], **arguments: Any) -> Maker:
    """Give an actor all arguments but the database and its name."""
    return partial(function, **arguments)


def writer(*transactions: Sequence[tuple[int, ...]], **options: Any) -> Maker:
    """Give a writer of the outbox; each transaction is a list of shard, time hint, and perhaps a row."""
    return maker(write, transactions=transactions, **options)


def serialized(*order: int, shard: int = 1, hint: int = 1) -> Maker:
    """Give a serialized writer that inserts its rows in the given order."""
    return maker(write_serialized, shard=shard, hint=hint, order=order)


EVENT = ((1, 1),)
TWO_EVENTS = EVENT * 2
DRAIN = maker(drain, shard=1)
SEAL = maker(seal, until=5)
READER = maker(read, shard=1)
EXPORT = maker(read_range, shard=1, until=5)
PURGE = maker(purge, shard=1, until=5)

TWO_WRITERS = Program({"A": writer(EVENT), "B": writer(EVENT), "drain": DRAIN})
TWO_ROWS = Program({"A": writer(TWO_EVENTS), "drain": DRAIN})
BETWEEN = Program({"A": writer(TWO_EVENTS), "B": writer(EVENT), "drain": DRAIN})
#: A draws a number, and then waits for the row that B has changed.
WAITS_FOR_A_ROW = Program({"A": writer(((1, 1), (1, 1, 7))), "B": writer(((1, 1, 7),)), "drain": DRAIN})
#: One drain plans while another has taken A's row away, and dies.
DYING_NEIGHBOUR = Program(
    {"killed": maker(drain, shard=1, rolls_back=True, page_size=1), "drain": DRAIN},
    before=(writer(EVENT, EVENT),),
)
#: Shard 1 shares its page with the first row of shard 2, whose other row is on the next page.
NEIGHBOURS = Program(
    {"drain 1": DRAIN, "drain 2": maker(drain, shard=2)}, before=(writer(EVENT, ((2, 1),), ((2, 1),)),)
)
NEW_SHARD = Program({"A": writer(EVENT), "drain": DRAIN, "seal": SEAL}, after=(writer(EVENT),))
NEW_SHARD_SERIALIZED = Program({"A": serialized(0), "seal": SEAL}, after=(serialized(0),))
OLD_SHARD_SERIALIZED = Program({"A": serialized(0, hint=2), "seal": SEAL}, before=(serialized(0),))
SERIALIZED_READER = Program({"A": serialized(1, 0), "reader": READER})
DRAIN_READER = Program(
    {"drain": maker(drain, shard=1, backwards=True), "reader": READER}, before=(writer(TWO_EVENTS),)
)
PURGED_RANGE = Program({"purge": PURGE, "export": EXPORT}, before=(writer(TWO_EVENTS), DRAIN, SEAL))
PURGED_READER = Program({"purge": PURGE, "reader": READER}, before=(writer(TWO_EVENTS), DRAIN, SEAL))

#: Several of them at once.
TOGETHER = {
    "two drains and a transaction larger than a page": Program(
        {"one": maker(drain, shard=1, page_size=1), "two": maker(drain, shard=1, page_size=2)},
        before=(writer(TWO_EVENTS, EVENT),),
    ),
    "two drains, page by page": Program(
        {
            "A": writer(TWO_EVENTS),
            "one": maker(drain, shard=1, page_size=1),
            "two": maker(drain, shard=1, page_size=1),
        }
    ),
    "a drain is rolled back": Program(
        {"A": writer(TWO_EVENTS), "killed": maker(drain, shard=1, rolls_back=True), "drain": DRAIN}
    ),
    "a writer is rolled back": Program(
        {"A": writer(TWO_EVENTS, rolls_back=True), "B": writer(EVENT), "drain": DRAIN}
    ),
    "a reader drains": Program(
        {"A": writer(TWO_EVENTS), "reader": maker(read, shard=1, pages=1, drains=True)}
    ),
    "two serialized writers and a reader": Program(
        {"A": serialized(1, 0), "B": serialized(1, 0), "reader": READER}
    ),
    "two serialized writers, a seal and an export": Program(
        {"A": serialized(1, 0), "B": serialized(0), "seal": SEAL, "export": EXPORT}
    ),
    "two seals of a new shard": Program({"A": serialized(0), "one": SEAL, "two": maker(seal, until=3)}),
}

#: Locks that go one by one at a commit, in both orders.
SINGLE_RELEASES = {
    release: Program({"A": writer(TWO_EVENTS, releases=release), "drain": DRAIN})
    for release in (Release.OLDEST_FIRST, Release.NEWEST_FIRST)
}
#: A drain that makes a shard's state is killed while a seal lists the shards.
KILLED_IN_NEW_SHARD = Program(
    {"killed": maker(drain, shard=1, rolls_back=True), "seal": SEAL}, before=(writer(EVENT),)
)
