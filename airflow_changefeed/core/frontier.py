# SPDX-License-Identifier: Apache-2.0
"""
The frontier of a windowed export: where the unbroken run of complete ranges begins and ends.

The ranges may end in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_changefeed.core.ulid import Ulid, UlidRange, merge
from airflow_changefeed.exceptions import CursorFormatError


@dataclass(frozen=True)
class Frontier:
    """
    What a consumer has completed of one shard.

    :param start: exclusive; where the unbroken run of complete ranges begins. At first this is where the
        consumer's first window begins; complete ranges that reach it extend the run backwards.
    :param upto: inclusive; the end of the run: the cursor.
    :param ahead: complete ranges beyond a gap; ascending, none touching the next nor ``upto``.
    :param before: complete ranges before ``start``, by a backfill; ascending, none touching the next nor
        ``start``.
    """

    start: Ulid
    upto: Ulid
    ahead: tuple[UlidRange, ...] = ()
    before: tuple[UlidRange, ...] = ()

    def __post_init__(self) -> None:
        if self.upto < self.start:
            raise CursorFormatError(f"frontier {self.upto} is before its start {self.start}")
        run = UlidRange(self.start, self.upto)
        pieces = [*self.before, run, *self.ahead]
        if merge(pieces) != pieces or any(piece.is_empty for piece in (*self.before, *self.ahead)):
            raise CursorFormatError(
                f"ranges before or ahead of frontier {self.upto} are not ascending and separate"
            )

    @classmethod
    def beginning(cls, after: Ulid) -> Frontier:
        """Return the frontier of a consumer that has completed nothing and begins after a ULID."""
        return cls(after, after)

    @property
    def has_moved(self) -> bool:
        """Whether any range was completed."""
        return self.upto > self.start or bool(self.ahead or self.before)

    @property
    def complete_ranges(self) -> tuple[UlidRange, ...]:
        """All ranges that were completed, ascending; that of the run may be empty."""
        return (*self.before, UlidRange(self.start, self.upto), *self.ahead)

    def begin_at(self, after: Ulid) -> Frontier:
        """
        Let the consumer begin earlier; this is possible until it has completed a range.

        Runs of a backfill plan in any order; the earliest that plans before the first one ends is the
        beginning. Afterwards an earlier window extends the beginning backwards once all between is complete.
        """
        return self if self.has_moved or after >= self.start else Frontier.beginning(after)

    def complete(self, *done: UlidRange) -> Frontier:
        """
        Add complete ranges; the order of such calls does not matter, nor do repetitions and overlaps.

        :param done: each ``(after, upto]``. One that touches the run from ``start`` to ``upto``, from above
            or below, extends it; the others wait in ``ahead`` and ``before`` until they do.
        """
        pieces = [piece for piece in (*self.complete_ranges, *done) if not piece.is_empty]
        # An empty (start, start] joins the pieces that touch it, and stays where none does.
        merged = merge([UlidRange(self.start, self.start), *pieces])
        at = next(place for place, one in enumerate(merged) if one.after <= self.start <= one.upto)
        return Frontier(merged[at].after, merged[at].upto, tuple(merged[at + 1 :]), tuple(merged[:at]))

    def moved_to(self, ulid: Ulid) -> Frontier:
        """
        Return the frontier after a person moved the cursor: forwards it absorbs complete ranges on the way,
        backwards it forgets what was completed after the new position, and below ``start`` what was before.
        """
        if ulid < self.start:
            return Frontier.beginning(ulid)
        if ulid <= self.upto:
            return replace(self, upto=ulid, ahead=())
        return self.complete(UlidRange(self.start, ulid))

    def missing(self) -> tuple[UlidRange, ...]:
        """
        Return the gaps which hold the frontier back; empty when nothing is complete ahead of it.

        What lies before ``start`` is not missing.
        """
        ends = [self.upto, *(piece.upto for piece in self.ahead)]
        return tuple(UlidRange(end, piece.after) for end, piece in zip(ends, self.ahead, strict=False))
