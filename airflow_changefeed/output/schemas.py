# SPDX-License-Identifier: Apache-2.0
"""The columns of units: as manifests hold them, of units that are read together, and which types widen."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from typing import TYPE_CHECKING

from airflow_changefeed.core.export_plan import ICEBERG, PARQUET, Manifest
from airflow_changefeed.exceptions import ColumnTypeError

if TYPE_CHECKING:
    import pyarrow as pa


def leaf_types(name: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the path and type of each leaf of a column: itself, if it is not a struct."""
    import pyarrow as pa

    if not pa.types.is_struct(kind):
        yield name, kind
        return
    for field in kind:
        yield from leaf_types(f"{name}.{field.name}", field.type)


def leaves(name: str, column: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield the path and values of each leaf of a column, in Parquet's order; null where a struct is."""
    import pyarrow as pa

    if not pa.types.is_struct(column.type):
        yield name, column
        return
    for number, inner in enumerate(column.flatten()):
        yield from leaves(f"{name}.{column.type.field(number).name}", inner)


_MOST_NAMED = 10
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


def schema_text(schema: pa.Schema) -> str:
    """Return columns as manifests hold them: Arrow's serialized schema, without metadata, in base64."""
    return base64.b64encode(schema.remove_metadata().serialize()).decode()


def parse_schema(text: str, *, named: str) -> pa.Schema:
    """
    Read what :func:`schema_text` wrote; an empty text has no columns.

    :param named: names it in errors.
    :raises ColumnTypeError: this pyarrow cannot read it.
    """
    import pyarrow as pa

    try:
        return _parse_schema(text)
    except (ValueError, OSError, pa.ArrowException) as problem:
        raise ColumnTypeError(
            f"{named}: pyarrow {pa.__version__} cannot read the schema ({problem}). If a newer pyarrow wrote "
            "it, upgrade pyarrow here; otherwise export the unit again",
            named=named,
        ) from None


@lru_cache(maxsize=256)
def _parse_schema(text: str) -> pa.Schema:
    import pyarrow as pa

    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))) if text else pa.schema([])
    # Here, and not where they are needed first: names that are no UTF-8.
    for field in schema:
        list(leaf_types(field.name, field.type))
    return schema


def file_schema(schema: pa.Schema, table_format: str) -> pa.Schema:
    """
    Return the columns that the files of an export have in a format, for those of the feed.

    Times of both table formats are microseconds: Polars until 1.41 refuses milliseconds in a Delta table, and
    Iceberg's reader in Spark takes them for microseconds. It refuses unsigned whole numbers, too, which get
    the next wider type.
    """
    import pyarrow as pa

    if table_format == PARQUET:
        return schema
    return pa.schema([(field.name, _table_type(field.type, table_format)) for field in schema])


def _table_type(kind: pa.DataType, table_format: str) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _table_type(field.type, table_format)) for field in kind])
    if pa.types.is_timestamp(kind) and kind.unit in ("s", "ms"):
        return pa.timestamp("us", kind.tz)
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32()} if table_format == ICEBERG else {}
    return wider.get(kind, kind)


def kept_names(own: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """
    Return how an output spells columns that a feed spells in other letter case.

    Most readers take both for one column, and the others would find it in some of the files only.

    :param own: the feed's columns.
    :param known: those of the output.
    """
    folded = [Counter(map(str.lower, names)) for names in (own, known)]
    there = {name.lower(): name for name in known}
    return {
        name: there[name.lower()]
        for name in own
        if name not in known and all(count[name.lower()] == 1 for count in folded)
    }


def same_names(manifests: Iterable[Manifest]) -> list[list[str]]:
    """Return the names of columns that units spell in different letter case, if no unit has two of them."""
    found: dict[str, dict[str, None]] = {}
    twice: set[str] = set()
    for columns in dict.fromkeys(tuple(manifest.columns) for manifest in manifests):
        folded = Counter(map(str.lower, columns))
        twice |= {name for name, number in folded.items() if number > 1}
        for name in columns:
            found.setdefault(name.lower(), {})[name] = None
    return [list(names) for folded, names in found.items() if len(names) > 1 and folded not in twice]


def respelled(schema: pa.Schema, names: Mapping[str, str]) -> pa.Schema:
    """Return columns with other names, as :func:`kept_names` gives them."""
    import pyarrow as pa

    if not names:
        return schema
    return pa.schema([field.with_name(names.get(field.name, field.name)) for field in schema])


def common_schema(manifests: Iterable[Manifest], *, unify: bool = False) -> pa.Schema:
    """
    Return the columns of units that are read together.

    Where none of them has rows, the columns are those that the feed had when the newest was planned: what an
    idle hour says of the feed is no reason to refuse, or to widen, the rows of other hours.

    :param unify: a column that some units do not have is null there, and a type becomes the wider one of two
        if that holds all values of the other; False refuses any difference but that of order.
    :return: the columns in the order of the newest unit, columns that it has no more at the end.
    :raises ColumnTypeError: the columns differ; all that do are named, with a unit of each kind.
    """
    import pyarrow as pa

    by_age = sorted(manifests, key=lambda each: each.attempt, reverse=True)
    # The newest unit of each schema.
    newest: dict[str, Manifest] = {}
    for manifest in by_age:
        if manifest.files:
            newest.setdefault(manifest.schema, manifest)
    if not newest:
        return pa.schema(next((_columns(each) for each in by_age if each.schema), {}))
    kinds: dict[pa.DataType | None, Manifest] = {}
    for manifest in newest.values():
        kinds.setdefault(pa.struct(_columns(manifest)), manifest)
    common = _common_type(kinds, unify)
    if common is None:
        raise _refusal(dict(_differences("", kinds, unify)), unify)
    return pa.schema(_fields(common))


def _columns(manifest: Manifest) -> dict[str, pa.DataType]:
    where = f"the manifest of {manifest.unit} of feed {manifest.feed!r}"
    return _fields(parse_schema(manifest.schema, named=where))


def _common_type(kinds: Iterable[pa.DataType | None], unify: bool) -> pa.DataType | None:
    """Return one type for all values, if there is one; a kind is None where a unit lacks the column."""
    kinds = list(kinds)
    if not unify:
        return kinds[0] if len({_ordered(kind) for kind in kinds}) == 1 else None
    known = [kind for kind in kinds if kind is not None]
    return reduce(lambda one, other: None if one is None else wider_type(one, other), known)


def _ordered(kind: pa.DataType | None) -> pa.DataType | None:
    """Return a type whose structs have their fields by name, as their order does not count."""
    import pyarrow as pa

    if kind is None or not pa.types.is_struct(kind):
        return kind
    return pa.struct([(each.name, _ordered(each.type)) for each in sorted(kind, key=lambda each: each.name)])


def _fields(columns: pa.Schema | pa.StructType) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in columns}


def wider_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """
    Return the narrowest Arrow type that holds every value of two, unchanged.

    :return: None if there is no type that Arrow and Spark both read: whole numbers and fractions, text and
        numbers, decimals of different scales, times of different units. Structs have the fields of both,
        those of the first before, each as wide as both need it.
    """
    import pyarrow as pa

    if one == other:
        return one
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        own, theirs = _fields(one), _fields(other)
        wider = {name: wider_type(own.get(name, kind), kind) for name, kind in {**own, **theirs}.items()}
        return None if None in wider.values() else pa.struct(wider)
    if pa.types.is_decimal128(one) and pa.types.is_decimal128(other):
        return max(one, other, key=lambda kind: kind.precision) if one.scale == other.scale else None
    above, others = (
        [each[each.index(name) :] for each in _LADDERS if name in each] for name in (str(one), str(other))
    )
    found = (name for up in above for name in up if any(name in each for each in others))
    return next(map(pa.type_for_alias, found), None)


def _differences(
    path: str, kinds: Mapping[pa.DataType | None, Manifest], unify: bool
) -> Iterator[tuple[str, Mapping[pa.DataType | None, Manifest]]]:
    """Yield the columns that differ, and the fields of structs, by their paths."""
    import pyarrow as pa

    structs = {kind: _fields(kind) for kind in kinds if kind is not None and pa.types.is_struct(kind)}
    if len(structs) < len(kinds):
        yield path, kinds
        return
    for name in dict.fromkeys(name for fields in structs.values() for name in fields):
        found: dict[pa.DataType | None, Manifest] = {}
        for kind, fields in structs.items():
            found.setdefault(fields.get(name), kinds[kind])
        if _common_type(found, unify) is None:
            yield from _differences(f"{path}.{name}" if path else name, found, unify)


def _refusal(different: Mapping[str, Mapping[pa.DataType | None, Manifest]], unify: bool) -> ColumnTypeError:
    texts = []
    for name, kinds in list(different.items())[:_MOST_NAMED]:
        where = [f"{kind or 'missing'} in {manifest.unit}" for kind, manifest in kinds.items()]
        texts.append(f"column {name!r} is {', '.join(where)}")
    more = f"; and {len(different) - _MOST_NAMED} columns more" if len(different) > _MOST_NAMED else ""
    feed = next(iter(next(iter(different.values())).values())).feed
    names = list(different)
    remedy = (
        "these types have no common type: export the older units again, or read the units one by one"
        if unify
        else "read the units with unify_schemas=True, export the older units again, or read them one by one"
    )
    return ColumnTypeError(
        f"feed {feed!r} has units with different columns: {'; '.join(texts)}{more}; {remedy}",
        column=names[0],
        columns=names,
    )
