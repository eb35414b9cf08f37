# SPDX-License-Identifier: Apache-2.0
"""The remedies of ADR 0001, each of which can be taken out of the model."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Remedies:
    """
    What the procedures do against the races.

    :param bound: R1: a drain draws an order number first and takes only rows below it.
    :param row_locks: R2: a drain locks rows of its own shard only, never a page of neighbours.
    :param transactions: R6: the outbox knows the transaction of a row; that of mssql-changefeed v2 does not.
    :param whole: R6: with transactions, a drain leaves out those of which it did not scan all rows.
    :param highest: R6: with transactions, they are ordered by the last number that each drew.
    :param repeat: R6: without transactions, a drain scans until a scan finds no more than those before.
    :param plan_locked: a drain plans under the shard's lock, while no other one takes rows away.
    :param floor: R7: the state row of a new shard begins at the feed's floor, which a seal raises.
    :param floor_first: R7: a seal raises the floor before it lists the shards.
    :param floor_held: R7: whoever makes a state row holds the floor, shared, until it commits.
    :param state_before_delete: R7: a drain makes the state row before it deletes from the outbox, so that a
        seal finds a new shard in one of the two; also without the floor's lock, which makes the seal wait.
    :param seal_waits: R8: a seal takes the locks of serialized writers.
    :param head_bound: R9: a reader reads the committed clock first and takes only rows below it.
    :param purge_stored_first: R12: ``purged_upto`` is committed before rows go.
    :param check_after: R12: a reader checks ``purged_upto`` after its rows, not only before.
    """

    bound: bool = True
    row_locks: bool = True
    transactions: bool = True
    whole: bool = True
    highest: bool = True
    repeat: bool = True
    plan_locked: bool = True
    floor: bool = True
    floor_first: bool = True
    floor_held: bool = True
    state_before_delete: bool = True
    seal_waits: bool = True
    head_bound: bool = True
    purge_stored_first: bool = True
    check_after: bool = True

    def without(self, *names: str) -> Remedies:
        """Return the same with some taken out."""
        return replace(self, **dict.fromkeys(names, False))


ALL = Remedies()
#: With the outbox of mssql-changefeed v2.
V2 = ALL.without("transactions")
