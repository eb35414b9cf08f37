# SPDX-License-Identifier: Apache-2.0
"""
What people hold on to (docs/reference/compatibility.md), as text: one line for each thing, below its chapter.

A line that a released version has, and the present one has not, is a break. So is a new line that ends with
``required``: who calls, or who wrote, knows nothing of it.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pyarrow as pa

import airflow_changefeed
from airflow_changefeed import exceptions
from airflow_changefeed.assets.changefeed import changefeed_asset, changefeed_windows
from airflow_changefeed.cli.changefeed import get_cli_commands
from airflow_changefeed.core import cursor
from airflow_changefeed.core.codec import Document
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.export.completed import CompletedExport
from airflow_changefeed.formats.base import PARTITIONS
from airflow_changefeed.get_provider_info import get_provider_info
from airflow_changefeed.output.layout import Layout
from airflow_changefeed.output.schemas import file_schema
from airflow_changefeed.sources.arrow import TIME_FIELD, ULID_FIELD
from airflow_changefeed.sources.mssql.connection.errors import THROWN
from airflow_changefeed.sql import load_sql
from airflow_changefeed.sql.mssql import INSTALL, capture_templates, feed_templates
from tests.examples import DOCS

REQUIRED = "required"
#: Classes that people get from public ones, beside the names of the package.
RETURNED = (
    "consumers.event.FeedEvent",
    "consumers.run.Backoff",
    "core.consumer.DeadLetterState",
    "core.consumer.OnPoison",
    "core.feed.FeedKind",
    "sources.base.FeedSource",
)
_DATABASE = "3f2a9c1e-5b7d-4e60-8a41-c0ffee000001"
_MODULE = re.compile(
    r"create or alter (?P<what>procedure|function|view) <<schema>>\.\[(?P<name>[^\]]+)\]"
    r"(?P<rest>.*?)(?:\nas\b|\breturns\b|$)",
    re.DOTALL,
)
_PARAMETER = re.compile(
    r"(?P<name>@\w+) (?P<type>[\w<>]+(?:\([\w, ]+\))?)"
    r"(?P<default> = (?:N?'[^']*'|[\w.-]+))?(?P<output> output)?"
)
_TABLE = re.compile(
    r"create (?:table|type) <<schema>>\.\[(?P<name>[^\]]+)\](?: as table)? \((?P<rest>.*?)\n\)",
    re.DOTALL,
)


def surface() -> str:
    """Return all chapters."""
    chapters = {
        "python": _python(),
        "errors": _errors(),
        "documents": _documents(),
        "output": _output(),
        "variables and assets": _airflow(),
        "commands": _commands(),
        "t-sql": _t_sql(),
        "metrics": _metrics(),
    }
    return "\n".join(
        f"[{name}]\n" + "".join(f"{line}\n" for line in lines) for name, lines in chapters.items()
    )


def broken(released: str, present: str) -> list[str]:
    """Return what a version had that the present one has not, and what is newly required."""
    before, now = _lines(released), _lines(present)
    # Of a thing that is new itself, anything may be required.
    owners = {_owner(line) for line in before}
    demanded = {line for line in now - before if line.endswith(f" {REQUIRED}") and _owner(line) in owners}
    return [*(f"- {line}" for line in sorted(before - now)), *(f"+ {line}" for line in sorted(demanded))]


def _lines(text: str) -> set[str]:
    """Return the lines with their chapters before them."""
    found, chapter = set(), ""
    for line in text.splitlines():
        if line.startswith("["):
            chapter = line
        elif line:
            found.add(f"{chapter} {line}")
    return found


def _owner(line: str) -> str:
    """Return what a parameter, a key or an option belongs to: the chapter and the words before its name."""
    name = re.match(r"(\[[^\]]+\] .*?(?:\(\)|:|command|(?=--)|procedure \S+|function \S+))", line)
    return name[1].strip() if name else line


def _shown(value: Any) -> str:
    if isinstance(value, Enum):
        return repr(value.value)
    if inspect.isroutine(value) or inspect.isclass(value):
        return value.__name__
    # A marker, whose repr is its address.
    return type(value).__name__ if type(value).__repr__ is object.__repr__ else repr(value)


def _parameters(what: str, function: Any) -> Iterator[str]:
    for each in inspect.signature(function).parameters.values():
        if each.name in ("self", "cls") or each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
            continue
        place = "" if each.kind == each.KEYWORD_ONLY else " positional"
        default = REQUIRED if each.default is each.empty else f"= {_shown(each.default)}"
        yield f"{what} {each.name}{place} {default}"


def _is_ours(function: Any) -> bool:
    return str(function.__module__).startswith("airflow_changefeed")


def _class(name: str, cls: Any) -> Iterator[str]:
    yield f"{name} class"
    if issubclass(cls, Enum):
        yield from (f"{name} value {each.name} = {each.value!r}" for each in cls)
        return
    if "__init__" in vars(cls) or dataclasses.is_dataclass(cls):
        yield from _parameters(f"{name}()", cls)
    for member in sorted(dir(cls)):
        value = inspect.getattr_static(cls, member)
        inner = getattr(value, "__func__", value)
        if member.startswith("_"):
            continue
        computed = value.func if isinstance(value, cached_property) else getattr(value, "fget", None)
        if computed is not None and _is_ours(computed):
            yield f"{name} property {member}"
        elif inspect.isfunction(inner) and _is_ours(inner):
            yield f"{name} method {member}"
            yield from _parameters(f"{name}.{member}()", inner)
    fields = [each for each in getattr(cls, "template_fields", ()) if isinstance(each, str)]
    yield from (
        f"{name} template {each}" for each in sorted(set(fields) & set(inspect.signature(cls).parameters))
    )


def _python() -> Iterator[str]:
    things = {
        name: getattr(airflow_changefeed, name)
        for name in airflow_changefeed.__all__
        if name != "__version__"
    }
    for path in RETURNED:
        module, _, name = path.rpartition(".")
        things[path] = getattr(importlib.import_module(f"airflow_changefeed.{module}"), name)
    for name, thing in sorted(things.items()):
        if inspect.isclass(thing):
            yield from _class(name, thing)
        else:
            yield f"{name} function"
            yield from _parameters(f"{name}()", thing)


def _errors() -> Iterator[str]:
    for name, cls in sorted(vars(exceptions).items()):
        if inspect.isclass(cls) and issubclass(cls, exceptions.ChangefeedError):
            bases = [base.__name__ for base in cls.__mro__[1:] if base.__module__ == exceptions.__name__]
            yield f"{name} < {' < '.join(bases)}" if bases else name
    yield from (f"{number} {cls.__name__}" for number, cls in sorted(THROWN.items()))


def _stored(cls: type[Document]) -> Iterator[str]:
    """Yield the keys of a document; nested ones by their path."""
    yield f"{cls.KIND}: schema_version {cls.SCHEMA_VERSION}"
    yield from _keys(cls.KIND, cls)
    yield from (f"{cls.KIND}: {name} (written only)" for name in getattr(cls, "ALSO_WRITTEN", ()))


def _keys(what: str, cls: Any) -> Iterator[str]:
    for each in dataclasses.fields(cls):
        needed = each.default is dataclasses.MISSING
        yield f"{what}: {each.name} {each.type} {REQUIRED if needed else 'may be missing'}"


def _documents() -> Iterator[str]:
    for path in sorted(Path(airflow_changefeed.__file__).parent.rglob("*.py")):
        if "\n    KIND = " in path.read_text(encoding="utf-8"):
            name = path.relative_to(DOCS.parent).with_suffix("").as_posix().replace("/", ".")
            importlib.import_module(name)
    kinds = {each.KIND: each for each in _kinds_of(Document)}
    for _, cls in sorted(kinds.items()):
        yield from _stored(cls)
    inner = sorted({each.__name__: each for cls in kinds.values() for each in _nested(cls)}.items())
    for name, part in inner:
        yield from _keys(name, part)


def _kinds_of(cls: Any) -> Iterator[Any]:
    for each in cls.__subclasses__():
        yield from [each] if "KIND" in vars(each) else _kinds_of(each)


def _nested(cls: Any) -> Iterator[Any]:
    """Yield the dataclasses that the fields of another one are, or have."""

    def of(hint: Any) -> Iterator[Any]:
        if dataclasses.is_dataclass(hint) and "airflow_changefeed" in hint.__module__ and hint not in (Ulid,):
            yield hint
            yield from _nested(hint)
        for each in get_args(hint):
            yield from of(each)

    for hint in get_type_hints(cls).values():
        yield from of(hint)


def _output() -> Iterator[str]:
    layout, begin = Layout("/lake", "dbo.orders"), datetime(2026, 3, 1, tzinfo=timezone.utc)
    unit = ExportUnit.of_window(0, Window(begin, begin + timedelta(hours=1)))
    batch = ExportUnit(0, UlidRange(Ulid.MIN, Ulid.floor(begin)))
    for name, each in (("window", unit), ("batch", batch)):
        yield f"{name} {layout.placed(each, 12)}"
        yield f"{name} {layout.manifest(each, 12)}"
    yield f"claim {layout.claim}"
    columns = pa.schema([ULID_FIELD, TIME_FIELD])
    for form in ("parquet", "delta", "iceberg"):
        yield from (f"column {each.name} {each.type} ({form})" for each in file_schema(columns, form))
    yield from (f"partition {name}" for name in PARTITIONS)


def _airflow() -> Iterator[str]:
    yield f"Variable {cursor.variable_key(_DATABASE, 'warehouse', 'dbo.orders')}"
    yield f"{cursor.KIND}: schema_version {cursor.SCHEMA_VERSION}"
    for part in (cursor.CursorDocument, *_nested(cursor.CursorDocument)):
        yield from _keys(part.__name__, part)
    yield f"asset {changefeed_asset('dbo.orders', '/lake').uri}"
    yield f"asset of windows {changefeed_windows('dbo.orders', '/lake').uri}"
    for part in (CompletedExport, *_nested(CompletedExport)):
        yield from _keys(f"extra {part.__name__}", part)
    info = get_provider_info()
    yield from (f"decorator task.{each['name']}" for each in info["task-decorators"])
    for section, each in info["config"].items():
        yield from (
            f"config {section}.{name} = {option['default']!r}" for name, option in each["options"].items()
        )


def _commands() -> Iterator[str]:
    (group,) = get_cli_commands()
    yield from _subcommands("", group.subcommands)


def _subcommands(before: str, commands: Iterable[Any]) -> Iterator[str]:
    for each in commands:
        name = f"{before}{each.name}"
        if hasattr(each, "subcommands"):
            yield from _subcommands(f"{name} ", each.subcommands)
            continue
        yield f"{name} command"
        for option in each.args:
            settings = option.kwargs
            needed = settings.get("required") or (
                not option.flags[0].startswith("-") and settings.get("nargs") not in ("?", "*")
            )
            for flag in option.flags:
                yield f"{name} {flag} {REQUIRED if needed else 'option'}"
            yield from (
                f"{name} {option.flags[-1]} takes {choice}" for choice in settings.get("choices") or ()
            )


def _t_sql() -> Iterator[str]:
    texts = [load_sql(f"mssql/install/{name}.sql") for name in INSTALL if not name.endswith("templates")]
    templates = [*feed_templates(), *capture_templates()]
    texts += [each.body for each in templates]
    found: set[str] = set()
    for text in texts:
        permission = re.search(r"^-- permission: (.*)$", text, re.MULTILINE)
        for match in _MODULE.finditer(text):
            if permission and not permission[1].startswith("internal"):
                found |= set(_module(match))
    for each in templates:
        if (each.object, each.type) in (
            ("feed", "table"),
            ("outbox", "table"),
            ("read", "type"),
            ("state", "table"),
        ):
            for match in _TABLE.finditer(each.body):
                found |= set(_columns(match))
    yield from sorted(found)


def _plain(name: str) -> str:
    return name.replace("<<name>>", "T")


def _module(match: re.Match[str]) -> Iterator[str]:
    name = _plain(match["name"])
    yield f"{match['what']} {name}"
    for each in _PARAMETER.finditer(match["rest"]) if match["what"] != "view" else ():
        given = each["default"].strip() if each["default"] else REQUIRED
        what = f"{match['what']} {name} {each['name']}{each['output'] or ''}"
        yield f"{what} {each['type'].strip('<>')} {given}"


def _columns(match: re.Match[str]) -> Iterator[str]:
    for line in match["rest"].splitlines():
        name, _, rest = line.strip().partition(" ")
        if name and not name.startswith(("constraint", "--", "<<key_definitions")):
            yield f"table {_plain(match['name'])} {name} {rest.partition(' ')[0].strip('<>,')}"


def _metrics() -> Iterator[str]:
    page = (DOCS / "reference/metrics.md").read_text(encoding="utf-8")
    yield from sorted(set(re.findall(r"^\| `(changefeed\.[\w.]+)`", page, re.MULTILINE)))
