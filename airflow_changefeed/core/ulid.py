# SPDX-License-Identifier: Apache-2.0
"""ULID arithmetic over python-ulid: floor of a time, neighbours, half-open ranges, a shard's generator."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import ulid

from airflow_changefeed.core.values import from_milliseconds, to_milliseconds
from airflow_changefeed.exceptions import InvalidUlidError

_RANDOM_BITS = 80
_MAX = (1 << 128) - 1


class Ulid(ulid.ULID):
    """
    A ULID: 48 bits of milliseconds since 1970 UTC, then 80 bits; ordered as its 16 bytes are.

    Encoding and decoding are python-ulid's (https://github.com/ulid/spec); this class adds the arithmetic
    that feeds need. Built by :meth:`floor`, :meth:`parse_text`, ``from_bytes`` or ``from_int``.
    """

    MIN: ClassVar[Ulid]
    MAX: ClassVar[Ulid]

    @classmethod
    def floor(cls, time: datetime) -> Ulid:
        """
        Return the lowest ULID of a time.

        :param time: aware, whole milliseconds; 1970 to 10889.
        :raises InvalidWindowError: the time has no zone or is finer than a millisecond.
        """
        return cls.floor_milliseconds(to_milliseconds(time))

    @classmethod
    def floor_milliseconds(cls, milliseconds: int) -> Ulid:
        """Return the lowest ULID of a time in milliseconds since 1970 UTC."""
        return cls.of_int(milliseconds << _RANDOM_BITS)

    @classmethod
    def of_int(cls, value: int) -> Ulid:
        """
        Return the ULID of a 128-bit number.

        :raises InvalidUlidError: the number is negative or needs more than 128 bits.
        """
        if not 0 <= value <= _MAX:
            raise InvalidUlidError(f"{value} is not a ULID; expected 0 to 2**128 - 1", value=value)
        return cls(value.to_bytes(16, "big"))

    @classmethod
    def of_bytes(cls, value: bytes) -> Ulid:
        """
        Return the ULID of its 16 bytes.

        :raises InvalidUlidError: there are not 16 of them.
        """
        if len(value) != 16:
            raise InvalidUlidError(f"a ULID has 16 bytes, not {len(value)}", value=bytes(value).hex())
        return cls(bytes(value))

    @classmethod
    def parse_text(cls, text: str) -> Ulid:
        """
        Read the 26 Crockford characters of a ULID, in either case.

        :raises InvalidUlidError: wrong length, a character outside the alphabet, or beyond 128 bits.
        """
        try:
            parsed: Ulid = cls.from_str(text.upper())
        except (ValueError, AttributeError, TypeError, IndexError, OverflowError) as error:
            raise InvalidUlidError(f"{text!r} is not a ULID: {error}", value=text) from None
        # python-ulid drops bits beyond 128 and maps characters outside the alphabet; text must survive
        # unchanged.
        if str(parsed) != text.upper():
            raise InvalidUlidError(
                f"{text!r} is not a ULID; expected 26 characters of 0-9 A-Z without I L O U, up to 7ZZ...",
                value=text,
            )
        return parsed

    @property
    def time(self) -> datetime:
        """The time in the first 48 bits, in UTC."""
        return from_milliseconds(self.ms)

    @property
    def ms(self) -> int:
        """Milliseconds since 1970 UTC."""
        return int.from_bytes(self.bytes[:6], "big")

    def next(self) -> Ulid:
        """
        Return the ULID after this one.

        :raises InvalidUlidError: this is the last one.
        """
        return self.of_int(int(self) + 1)

    def previous(self) -> Ulid:
        """Return the ULID before this one; the first one is its own predecessor, as no event ever gets it."""
        return self.of_int(max(int(self) - 1, 0))


Ulid.MIN = Ulid.of_int(0)
Ulid.MAX = Ulid.of_int(_MAX)


@dataclass(frozen=True, order=True)
class UlidRange:
    """
    The ULIDs of ``(after, upto]``.

    :param after: exclusive lower end; ``Ulid.MIN`` is the start of the feed.
    :param upto: inclusive upper end; not below ``after``.
    """

    after: Ulid
    upto: Ulid

    def __post_init__(self) -> None:
        if self.upto < self.after:
            raise InvalidUlidError(
                f"range ({self.after}, {self.upto}] is reversed", after=self.after, upto=self.upto
            )

    def __contains__(self, ulid_: Ulid) -> bool:
        return self.after < ulid_ <= self.upto

    @property
    def is_empty(self) -> bool:
        """Whether the range contains no ULIDs."""
        return self.after == self.upto

    def overlaps(self, other: UlidRange) -> bool:
        """Whether a ULID is in both ranges."""
        return max(self.after, other.after) < min(self.upto, other.upto)

    def touches(self, other: UlidRange) -> bool:
        """Whether both together are one range without a gap."""
        return max(self.after, other.after) <= min(self.upto, other.upto)


def merge(ranges: Iterable[UlidRange]) -> list[UlidRange]:
    """Return the fewest ranges that cover the same, ascending: none touches the next."""
    merged: list[UlidRange] = []
    for each in sorted(ranges):
        if merged and each.touches(merged[-1]):
            merged[-1] = UlidRange(merged[-1].after, max(merged[-1].upto, each.upto))
        else:
            merged.append(each)
    return merged


def uncovered(wanted: UlidRange, ranges: Iterable[UlidRange]) -> list[UlidRange]:
    """Return the pieces of a range that no other covers, ascending."""
    found, position = [], wanted.after
    for each in sorted(ranges):
        if position < min(each.after, wanted.upto):
            found.append(UlidRange(position, min(each.after, wanted.upto)))
        position = max(position, each.upto)
    return [*found, UlidRange(position, wanted.upto)] if position < wanted.upto else found


def random_80_bits() -> int:
    """Return random low bits with the highest bit clear, which leaves 2**79 successors in the millisecond."""
    return secrets.randbits(_RANDOM_BITS - 1)


@dataclass
class HighWater:
    """
    Gives a shard's ULIDs in order: each above the last, at the running maximum of the hints
    (ADR 0005, R3).

    :param ms: the shard's high-water time, milliseconds since 1970 UTC; no ULID below it will be given.
    :param last: the last ULID given, or ``Ulid.MIN``, as a number.
    :param now_ms: the database's present time.
    :param tolerance_ms: how far a hint may lie in the future; one beyond takes the present time instead,
        so that it cannot push the high-water time far ahead.
    :param randomness: source of the low bits of a millisecond's first ULID.
    """

    ms: int
    last: int
    now_ms: int
    tolerance_ms: int
    randomness: Callable[[], int] = random_80_bits

    def give(self, hint_ms: int, count: int = 1) -> int:
        """
        Give ``count`` consecutive ULIDs.

        :param hint_ms: the time the event asks for; one in the past becomes the shard's high-water time.
        :return: the first of them, as a number.
        """
        if hint_ms > self.now_ms + self.tolerance_ms:
            hint_ms = self.now_ms
        if hint_ms > self.ms:
            self.ms = hint_ms
        first = self.ms << _RANDOM_BITS
        first = self.last + 1 if self.last >= first else first | self.randomness()
        self.last = first + count - 1
        # Giving more than 2**79 in one millisecond would carry into the time; follow it, so that order holds.
        self.ms = max(self.ms, self.last >> _RANDOM_BITS)
        return first
