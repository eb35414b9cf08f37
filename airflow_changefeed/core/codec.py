# SPDX-License-Identifier: Apache-2.0
"""
Values as JSON and back, by their type hints: one way for all that is stored, sent to a job, or shown.

What is stored alone is a :class:`Document`, with a schema version and a digest: cursors, plans, manifests,
results.

A dataclass becomes an object with the names of its fields; an enum its value; a ULID, a time and a shard
text; a length of time seconds; a tuple a list; a mapping an object whose keys are written as such values are.
:class:`Form` in ``Annotated`` writes a type in another way.

A dataclass may say three things of its JSON: ``ALSO_WRITTEN`` names properties that are written for readers
and not read back; ``REFUSES_UNKNOWN`` refuses names that are not its fields', which else are passed over; and
``OMITS_DEFAULTS`` leaves out what has its default, so that an older version which refuses unknown names reads
what uses none of them. A name that is missing takes the default of its field, unless that is a
``default_factory``.

Our own, in pure Python: Spark's executors get this package as a zip, where no module in machine code loads.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from airflow_changefeed.core.feed import parse_shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time, parse_time, shown
from airflow_changefeed.exceptions import (
    ChangefeedError,
    InvalidArgumentError,
    TerminalError,
    UnsupportedVersionError,
)

_T = TypeVar("_T")
_Document = TypeVar("_Document", bound="Document")


@dataclass(frozen=True)
class Form:
    """
    How values of a type are written and read.

    :param write: returns JSON values.
    :param read: raises a :class:`ChangefeedError` or ``ValueError`` whose text names the value.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def encode(value: Any, kind: Any = None) -> Any:
    """
    Return a value as JSON values.

    :param kind: its type; None for a dataclass, which says it itself.
    """
    hint: Any = kind or type(value)
    return _form(hint).write(value)


def decode(
    kind: type[_T], value: Any, *, named: str, error: type[TerminalError] = InvalidArgumentError
) -> _T:
    """
    Read what :func:`encode` wrote.

    :param named: names the whole in errors: ``manifest``, or a path.
    :param error: raised when the value does not fit: ``manifest: files[0].rows: 'x' is not a whole number``.
    """
    hint: Any = kind
    try:
        found: _T = _at("", _form(hint), value)
    except _MisfitError as misfit:
        raise error(f"{named}: {misfit}", named=named) from None
    return found


def decode_text(
    kind: type[_T], text: str | bytes, *, named: str, error: type[TerminalError] = InvalidArgumentError
) -> _T:
    """Read the JSON text of what :func:`encode` wrote, as :func:`decode` does, or say that it is not JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise error(f"{named}: invalid JSON ({problem})", named=named) from None
    return decode(kind, value, named=named, error=error)


class _MisfitError(Exception):
    """What does not fit; each level that it leaves puts its step before the path."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem, path)
        self.problem = problem
        self.path = path

    def __str__(self) -> str:
        path = self.path.lstrip(".")
        return f"{path}: {self.problem}" if path else self.problem


def _at(step: str, form: Form, value: Any) -> Any:
    try:
        return form.read(value)
    except _MisfitError as misfit:
        raise _MisfitError(misfit.problem, step + misfit.path) from None
    except ChangefeedError as error:
        raise _MisfitError(error.message, step) from None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _MisfitError(str(error), step) from None


def _is_not(value: Any, what: str) -> _MisfitError:
    return _MisfitError(f"{shown(value)} is not {what}")


def _same(value: Any) -> Any:
    return value


def _plain(kinds: type | tuple[type, ...], what: str) -> Form:
    def read(value: Any) -> Any:
        # Python counts True as 1.
        if isinstance(value, kinds) and (kinds is bool or not isinstance(value, bool)):
            return value
        raise _is_not(value, what)

    return Form(_same, read)


def _read_text(value: Any) -> str:
    text: str = _TEXT.read(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _is_not(value, "a text: it has half a character (a lone surrogate)") from None
    return text


def _read_number(value: Any) -> Any:
    # Python's JSON has NaN and Infinity.
    if not isfinite(_ANY_NUMBER.read(value)):
        raise _is_not(value, "a number")
    return value


_ANY_NUMBER = _plain((int, float), "a number")
_TEXT = _plain(str, "a text")
_OBJECT = _plain(Mapping, "an object")
_LIST = _plain((list, tuple), "a list")
_FORMS: dict[Any, Form] = {
    Any: Form(_same, _same),
    str: Form(_same, _read_text),
    bool: _plain(bool, "true or false"),
    int: _plain(int, "a whole number"),
    float: Form(_same, lambda value: float(_read_number(value))),
    Ulid: Form(str, Ulid.parse_text),
    datetime: Form(format_time, parse_time),
    timedelta: Form(timedelta.total_seconds, lambda value: timedelta(seconds=_read_number(value))),
}
_SHARD = Form(shard_text, parse_shard)


@cache
def _form(kind: Any) -> Form:
    if kind in _FORMS:
        return _FORMS[kind]
    if get_origin(kind) is not None:
        return _generic(get_origin(kind), get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    if is_dataclass(kind):
        return _record(kind)
    raise TypeError(f"{kind} has no form in JSON")


def _generic(origin: Any, inner: tuple[Any, ...]) -> Form:
    if origin is Annotated:
        return next((one for one in inner[1:] if isinstance(one, Form)), None) or _form(inner[0])
    if origin in (Union, UnionType):
        return _union(inner)
    if issubclass(origin, Mapping):
        return _mapping(*map(_form, inner))
    if origin is tuple and inner[-1] is not Ellipsis:
        return _fixed([_form(one) for one in inner])
    return _many(_form(inner[0]))


def _union(kinds: Sequence[Any]) -> Form:
    rest = [kind for kind in kinds if kind is not NoneType]
    if set(rest) == {int, uuid.UUID}:
        form = _SHARD
    elif len(rest) == 1:
        form = _form(rest[0])
    else:
        raise TypeError(f"a union of {rest} has no form in JSON")
    if len(rest) == len(kinds):
        return form
    return Form(
        lambda value: None if value is None else form.write(value),
        lambda value: None if value is None else form.read(value),
    )


def _mapping(key: Form, one: Form) -> Form:
    def write(value: Mapping[Any, Any]) -> dict[str, Any]:
        return {key.write(name): one.write(item) for name, item in value.items()}

    def read(value: Any) -> dict[Any, Any]:
        return {
            _at(f"[{name!r}]", key, name): _at(f"[{name!r}]", one, item)
            for name, item in _OBJECT.read(value).items()
        }

    return Form(write, read)


def _many(one: Form) -> Form:
    def read(value: Any) -> tuple[Any, ...]:
        return tuple(_at(f"[{number}]", one, item) for number, item in enumerate(_LIST.read(value)))

    return Form(lambda value: [one.write(item) for item in value], read)


def _fixed(forms: Sequence[Form]) -> Form:
    def write(value: Sequence[Any]) -> list[Any]:
        return [form.write(item) for form, item in zip(forms, value, strict=True)]

    def read(value: Any) -> tuple[Any, ...]:
        if len(_LIST.read(value)) != len(forms):
            raise _is_not(value, f"a list of {len(forms)}")
        items = enumerate(zip(forms, value, strict=True))
        return tuple(_at(f"[{number}]", form, item) for number, (form, item) in items)

    return Form(write, read)


def _enum(kind: type[Enum]) -> Form:
    def read(value: Any) -> Enum:
        try:
            return kind(value)
        except ValueError:
            raise _is_not(value, f"one of {', '.join(str(one.value) for one in kind)}") from None

    return Form(lambda value: kind(value).value, read)


def _record(kind: Any) -> Form:
    hints = get_type_hints(kind, include_extras=True)
    known = {one.name: (one, _form(hints[one.name])) for one in fields(kind)}
    written = {name: form for name, (_, form) in known.items()}
    for name in getattr(kind, "ALSO_WRITTEN", ()):
        written[name] = _form(get_type_hints(getattr(kind, name).fget, include_extras=True)["return"])
    refuses_unknown = getattr(kind, "REFUSES_UNKNOWN", False)
    omits = getattr(kind, "OMITS_DEFAULTS", False)
    omitted = {name: field.default for name, (field, _) in known.items() if omits}

    def write(value: Any) -> dict[str, Any]:
        found = {name: getattr(value, name) for name in written}
        return {
            name: written[name].write(one)
            for name, one in found.items()
            if name not in omitted or one != omitted[name]
        }

    def read(value: Any) -> Any:
        unknown = [str(name) for name in _OBJECT.read(value) if name not in written]
        if unknown and refuses_unknown:
            raise _MisfitError(f"{', '.join(unknown)} is unknown; known are {', '.join(known)}")
        return kind(
            **{
                name: _field(field, form, value)
                for name, (field, form) in known.items()
                if name in value or field.default is MISSING
            }
        )

    return Form(write, read)


def _field(field: Field[Any], form: Form, value: Mapping[str, Any]) -> Any:
    if field.name not in value:
        raise _MisfitError("is missing", f".{field.name}")
    try:
        return _at(f".{field.name}", form, value[field.name])
    except _MisfitError as misfit:
        # A field that is left out of its object's repr may be a secret.
        raise misfit if field.repr else _MisfitError("is not what it must be", misfit.path) from None


class Document:
    """
    Base of a dataclass that is kept as a document.

    ``KIND`` says what it is: ``"changefeed manifest"``. ``ERROR`` is raised for a text that is not one.
    """

    KIND: ClassVar[str]
    SCHEMA_VERSION: ClassVar[int] = 1
    ERROR: ClassVar[type[TerminalError]] = TerminalError

    def to_json(self) -> str:
        """Write the document."""
        return dump(self.KIND, self.SCHEMA_VERSION, encode(self), indent=2)

    @classmethod
    def from_json(cls: type[_Document], text: str, *, named: str) -> _Document:
        """
        Read the document.

        :param named: names it in errors, for example its path.
        :raises TerminalError: not such a document, or damaged; as ``ERROR``.
        :raises UnsupportedVersionError: a newer version wrote it.
        """
        content = load(text, cls.KIND, cls.SCHEMA_VERSION, named=named, error=cls.ERROR)
        return decode(cls, content, named=named, error=cls.ERROR)


def dump(kind: str, version: int, content: Mapping[str, Any], *, indent: int | None = None) -> str:
    """
    Write a document.

    :param kind: what it is, for example ``"changefeed manifest"``.
    :param content: JSON values; must not hold the keys ``kind``, ``schema_version`` and ``digest``.
    """
    document = {"kind": kind, "schema_version": version, **content}
    return json.dumps(
        {**document, "digest": _digest(document)}, indent=indent, ensure_ascii=False, allow_nan=False
    )


def load(
    text: str, kind: str, version: int, *, named: str, error: type[TerminalError], check_digest: bool = True
) -> dict[str, Any]:
    """
    Read a document of this version or an older one.

    :param error: raised when the text is not such a document, or its digest does not match its content.
    :param check_digest: False reads a document that a person may have edited.
    :return: the content with ``schema_version`` and ``is_intact``, without kind and digest.
    :raises UnsupportedVersionError: a newer version wrote it.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise error(f"{named} is not a {kind}: invalid JSON ({problem})", named=named) from None
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise error(f"{named} is not a {kind}: the JSON has another structure", named=named)
    found = document.get("schema_version")
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise error(f"{named} is not a {kind}: its schema_version is {found!r}", named=named)
    if found > version:
        raise UnsupportedVersionError(
            f"{named} is a {kind} of schema version {found}, but this installation reads up to {version}; "
            "upgrade airflow-changefeed here",
            named=named,
            found=found,
            supported=version,
        )
    digest = document.pop("digest", None)
    is_intact = _is_intact(digest, document)
    if check_digest and not is_intact:
        raise error(f"{named} is damaged: its digest does not match its content", named=named)
    del document["kind"]
    return {**document, "is_intact": is_intact}


def _is_intact(digest: object, document: Mapping[str, Any]) -> bool:
    try:
        return digest == _digest(document)
    except (ValueError, RecursionError):
        # NaN, half a character, or a depth that the parser just took: dump() never wrote them.
        return False


def _digest(document: Mapping[str, Any]) -> str:
    canonical = json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
