# SPDX-License-Identifier: Apache-2.0
"""
The frontier of a windowed export: where the unbroken run of complete ranges ends.

The ranges may end in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import CursorFormatError


@dataclass(frozen=True)
class Frontier:
    """
    What a consumer has completed of one shard.

    :param start: exclusive; where the consumer's first window begins.
    :param upto: inclusive; the end of the unbroken run of complete ranges since ``start``: the cursor.
    :param ahead: complete ranges beyond a gap; ascending, none touching the next nor ``upto``.
    """

    start: Ulid
    upto: Ulid
    ahead: tuple[UlidRange, ...] = ()

    def __post_init__(self) -> None:
        if self.upto < self.start:
            raise CursorFormatError(f"frontier {self.upto} is before its start {self.start}")
        last = self.upto
        for piece in self.ahead:
            if piece.after <= last or piece.is_empty:
                raise CursorFormatError(
                    f"ranges ahead of frontier {self.upto} are not ascending and separate"
                )
            last = piece.upto

    @classmethod
    def beginning(cls, after: Ulid) -> Frontier:
        """Return the frontier of a consumer that has completed nothing and begins after a ULID."""
        return cls(after, after)

    @property
    def has_moved(self) -> bool:
        """Whether any range was completed."""
        return self.upto > self.start or bool(self.ahead)

    def begin_at(self, after: Ulid) -> Frontier:
        """
        Let the consumer begin earlier; this is possible until it has completed a range.

        Runs of a backfill plan in any order; the earliest that plans before the first one ends is the
        beginning. Afterwards an earlier window is a backfill before the consumer's beginning,
        and the cursor does not go back for it.
        """
        return self if self.has_moved or after >= self.start else Frontier.beginning(after)

    def complete(self, *done: UlidRange) -> Frontier:
        """
        Add complete ranges; the order of such calls does not matter, nor do repetitions and overlaps.

        :param done: each ``(after, upto]``; what is before ``start`` is ignored.
        """
        pieces = [
            UlidRange(max(piece.after, self.start), piece.upto)
            for piece in done
            if piece.upto > max(piece.after, self.start)
        ]
        if not pieces:
            return self
        # An empty (start, start] survives the merge as the first piece, since it sorts first.
        merged = _merge([UlidRange(self.start, self.upto), *self.ahead, *pieces])
        return replace(self, upto=merged[0].upto, ahead=tuple(merged[1:]))

    def without(self, *taken: UlidRange) -> Frontier:
        """Return the frontier after ranges were removed from the output."""
        pieces = [UlidRange(self.start, self.upto), *self.ahead]
        for each in taken:
            pieces = [part for piece in pieces for part in _left(piece, each)]
        # An empty (start, start] stays as the first piece, whatever was taken.
        merged = _merge([UlidRange(self.start, self.start), *pieces])
        return replace(self, upto=merged[0].upto, ahead=tuple(merged[1:]))

    def moved_to(self, ulid: Ulid) -> Frontier:
        """
        Return the frontier after a person moved the cursor: forwards it absorbs complete ranges on the way,
        backwards it forgets what was completed after the new position.
        """
        if ulid < self.start:
            return Frontier.beginning(ulid)
        if ulid <= self.upto:
            return Frontier(self.start, ulid)
        return self.complete(UlidRange(self.start, ulid))

    def missing(self) -> tuple[UlidRange, ...]:
        """Return the gaps which hold the frontier back; empty when nothing is complete ahead of it."""
        ends = [self.upto, *(piece.upto for piece in self.ahead)]
        return tuple(UlidRange(end, piece.after) for end, piece in zip(ends, self.ahead, strict=False))


def _left(piece: UlidRange, taken: UlidRange) -> list[UlidRange]:
    if not piece.overlaps(taken):
        return [piece]
    before = UlidRange(piece.after, max(piece.after, taken.after))
    behind = UlidRange(min(piece.upto, taken.upto), piece.upto)
    return [part for part in (before, behind) if not part.is_empty]


def _merge(pieces: Iterable[UlidRange]) -> list[UlidRange]:
    merged: list[UlidRange] = []
    for piece in sorted(pieces):
        if merged and piece.touches(merged[-1]):
            merged[-1] = UlidRange(merged[-1].after, max(merged[-1].upto, piece.upto))
        else:
            merged.append(piece)
    return merged
