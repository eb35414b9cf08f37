# SPDX-License-Identifier: Apache-2.0
"""The columns of units that are read together, by their manifests; and what may be widened to what."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from airflow_changefeed.core.manifest import Manifest
from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.output.structs import ordered_text, struct_fields, struct_text

_MOST_NAMED = 10
_ABSENT = None
_DECIMAL = re.compile(r"decimal128\((\d+), (-?\d+)\)")
# Each holds every value of those before it, in Arrow and in Spark alike.
_LADDERS = (
    ("int8", "int16", "int32", "int64"),
    ("uint8", "int16", "int32", "int64"),
    ("uint16", "int32", "int64"),
    ("uint32", "int64"),
    ("float", "double"),
    ("string", "large_string"),
    ("binary", "large_binary"),
)


def common_schema(manifests: Iterable[Manifest], *, unify: bool = False) -> Mapping[str, str]:
    """
    Return the columns of units that are read together.

    Where none of them has rows, the columns are those that the feed had when the newest was planned: what an
    idle hour says of the feed is no reason to refuse, or to widen, the rows of other hours.

    :param unify: a column that some units do not have is null there, and a type becomes the wider one of two
        if that holds all values of the other; False refuses any difference but that of order.
    :return: column name to Arrow type, in the order of the newest unit, columns that it has no more at the
        end.
    :raises ColumnTypeError: the columns differ; all that do are named, with a unit of each kind.
    """
    manifests = list(manifests)
    # One manifest speaks for those of its attempt; by its columns too, as a feed that was dropped and set up
    # again, or a restored database, begins its tokens again.
    spoken = {(each.attempt, *each.schema.items()): each for each in manifests if each.files}
    by_age = sorted(spoken.values(), key=lambda each: each.attempt, reverse=True)
    idle = [each for each in manifests if each.schema] if not by_age else []
    if idle:
        return max(idle, key=lambda each: each.attempt).schema
    kinds: dict[str, dict[str | None, Manifest]] = {}
    for manifest in by_age:
        for name in manifest.schema:
            kinds.setdefault(name, {})
    for manifest in by_age:
        for name, found in kinds.items():
            found.setdefault(manifest.schema.get(name, _ABSENT), manifest)
    _refuse({name: found for name, found in kinds.items() if not _fits(found, unify)}, unify)
    return {name: _widest(found) or "" for name, found in kinds.items()}


def _fits(kinds: Mapping[str | None, Manifest], unify: bool) -> bool:
    if unify:
        return _widest(kinds) is not None
    return len({kind if kind is None else ordered_text(kind) for kind in kinds}) == 1


def _widest(kinds: Iterable[str | None]) -> str | None:
    """Return the type that holds all values of all; None when there is none."""
    known = [kind for kind in kinds if kind is not None]
    widest = known[0]
    for kind in known[1:]:
        wider = wider_type(widest, kind)
        if wider is None:
            return None
        widest = wider
    return widest


def wider_type(one: str, other: str) -> str | None:
    """
    Return the narrowest Arrow type that holds every value of two, unchanged.

    :return: None if there is no type that Arrow and Spark both read: whole numbers and fractions, text and
        numbers, decimals of different scales, times of different units. Structs have the fields of both,
        those of the first before, each as wide as both need it.
    """
    if one == other:
        return one
    structs = struct_fields(one), struct_fields(other)
    if structs[0] is not None and structs[1] is not None:
        return _wider_struct(structs[0], structs[1])
    decimals = _DECIMAL.fullmatch(one), _DECIMAL.fullmatch(other)
    if decimals[0] and decimals[1]:
        return max(one, other, key=_precision) if decimals[0][2] == decimals[1][2] else None
    both = [
        ladder[max(ladder.index(one), ladder.index(other)) :]
        for ladder in _LADDERS
        if one in ladder and other in ladder
    ]
    if both:
        return both[0][0]
    # Signed and unsigned meet at the first type that stands above both.
    ladders = [[each[each.index(kind) + 1 :] for each in _LADDERS if kind in each] for kind in (one, other)]
    return next((kind for up in ladders[0] for kind in up if any(kind in each for each in ladders[1])), None)


def _wider_struct(one: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    fields = {}
    for name in {**one, **other}:
        kind = wider_type(one.get(name, other.get(name, "")), other.get(name, one.get(name, "")))
        if kind is None:
            return None
        fields[name] = kind
    return struct_text(fields)


def _precision(kind: str) -> int:
    match = _DECIMAL.fullmatch(kind)
    return int(match[1]) if match else 0


def _apart(
    name: str, kinds: Mapping[str | None, Manifest], unify: bool
) -> Iterator[tuple[str, Mapping[str | None, Manifest]]]:
    """Yield what differs of a column: itself, or the fields of a struct by their paths."""
    structs = {kind: struct_fields(kind) if kind is not None else None for kind in kinds}
    if any(fields is None for fields in structs.values()):
        yield name, kinds
        return
    for field in dict.fromkeys(field for fields in structs.values() for field in fields or ()):
        found: dict[str | None, Manifest] = {}
        for kind, manifest in kinds.items():
            found.setdefault((structs[kind] or {}).get(field, _ABSENT), manifest)
        if not _fits(found, unify):
            yield from _apart(f"{name}.{field}", found, unify)


def _refuse(different: Mapping[str, Mapping[str | None, Manifest]], unify: bool) -> None:
    if not different:
        return
    different = {
        path: found for name, kinds in different.items() for path, found in _apart(name, kinds, unify)
    }
    texts = []
    for name, kinds in list(different.items())[:_MOST_NAMED]:
        where = [f"{kind or 'missing'} in {manifest.unit}" for kind, manifest in kinds.items()]
        texts.append(f"column {name!r} is {', '.join(where)}")
    more = f"; and {len(different) - _MOST_NAMED} columns more" if len(different) > _MOST_NAMED else ""
    feed = next(iter(next(iter(different.values())).values())).feed
    names = list(different)
    remedy = (
        "these types have no common one: export the older units again, or read them one by one"
        if unify
        else "read them with unify_schemas=True, export the older units again, or read them one by one"
    )
    raise ColumnTypeError(
        f"feed {feed!r} has units with different columns: {'; '.join(texts)}{more}; {remedy}",
        column=names[0],
        columns=names,
    )
