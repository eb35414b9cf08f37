# SPDX-License-Identifier: Apache-2.0
"""Who may import whom (docs/explanation/architecture.md), held against the source of every file."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import airflow_changefeed

PACKAGE = "airflow_changefeed"
ROOT = Path(__file__).resolve().parents[2] / PACKAGE

# From the ground up: each may import those before it, as far as MAY_IMPORT says so; the faces may import all.
BELOW_FACES = (
    "core",
    "exceptions",
    "sources",
    "capture",
    "consumers",
    "storage",
    "output",
    "formats",
    "cursors",
    "export",
    "lake",
    "doctor",
    "spark",
)
# By rank: each may import those of the ranks before it.
FACES = (
    ("connections",),
    ("tasks",),
    ("hooks",),
    ("triggers", "links", "assets", "observability"),
    ("sensors", "transfers", "operators", "notifications"),
    ("plugins", "cli", "decorators"),
)

_BELOW_EXPORT = frozenset({"capture", "core", "cursors", "exceptions", "output", "sources", "storage"})
# What each part may import of the package besides itself.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "exceptions": frozenset({"core"}),
    "core": frozenset({"exceptions"}),
    "sql": frozenset({"exceptions"}),
    "sources": frozenset({"core", "exceptions", "sql"}),
    "capture": frozenset({"core", "exceptions", "sources"}),
    "consumers": frozenset({"capture", "core", "exceptions", "sources"}),
    "storage": frozenset({"core", "exceptions"}),
    "output": frozenset({"core", "exceptions", "sources", "storage"}),
    "formats": frozenset({"core", "exceptions", "output", "sources", "storage"}),
    "cursors": frozenset({"core", "exceptions", "output", "sources"}),
    "export": _BELOW_EXPORT | {"formats"},
    "lake": _BELOW_EXPORT | {"export", "formats"},
    "doctor": _BELOW_EXPORT | {"export"},
    "spark": _BELOW_EXPORT | {"consumers", "export", "formats", "lake"},
    "version_compat": frozenset(),
    "get_provider_info": frozenset(),
    "__init__": frozenset({"exceptions"}),
}
_below = frozenset({*BELOW_FACES, "version_compat"})
for _rank in FACES:
    MAY_IMPORT |= dict.fromkeys(_rank, _below)
    _below |= frozenset(_rank)
MAY_IMPORT["__main__"] = frozenset({"cli"})

# Parts that may import nothing outside the package but the standard library and these.
ONLY_OUTSIDE: dict[str, frozenset[str]] = {
    "exceptions": frozenset(),
    "core": frozenset({"tenacity", "ulid"}),
    "sql": frozenset(),
    "get_provider_info": frozenset(),
    "__init__": frozenset(),
}
# Parts that may import anything outside the package but these.
NEVER_OUTSIDE: dict[str, frozenset[str]] = {
    **dict.fromkeys(BELOW_FACES[2:], frozenset({"airflow", "pyspark"})),
    "spark": frozenset({"airflow"}),
}


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walk everything that can run: all but the bodies of ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _is_type_checking(child.test):
            for other in child.orelse:
                yield other
                yield from _running_nodes(other)
        else:
            yield child
            yield from _running_nodes(child)


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """Name the module that a ``from ... import`` means, relative ones too."""
    if not node.level:
        return node.module or ""
    parts = module.split(".") if is_package else module.split(".")[:-1]
    base = parts[: len(parts) - (node.level - 1)]
    return ".".join([*base, *([node.module] if node.module else [])])


def imported_names(source: str, module: str, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import that can run, those by constant name included."""
    for node in _running_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module, is_package)
            if base == PACKAGE:
                yield from ((node.lineno, f"{PACKAGE}.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, base
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            name = node.args[0].value
            if called in ("import_module", "__import__") and isinstance(name, str) and name[:1] != ".":
                yield node.lineno, name


def _objection_inside(part: str, target: str) -> str | None:
    """Say why a part may not import another part of the package (or a public name from its root)."""
    if target == "__version__" and part not in ("core", "exceptions"):
        return None
    if target not in MAY_IMPORT:
        return "should import public names from the module where they live, not from the package"
    if target != part and target not in MAY_IMPORT[part]:
        return f"may import only {sorted(MAY_IMPORT[part]) or 'itself'} of the package"
    return None


def _objection(part: str, name: str) -> str | None:
    """Say why a part may not import a dotted name; None where it may."""
    top, _, rest = name.partition(".")
    if top == PACKAGE:
        return _objection_inside(part, rest.partition(".")[0])
    if part in ONLY_OUTSIDE:
        allowed = ONLY_OUTSIDE[part]
        if top not in sys.stdlib_module_names and top not in allowed:
            return f"may import only the standard library {('and ' + ', '.join(allowed)) if allowed else ''}"
    if top in NEVER_OUTSIDE.get(part, frozenset()):
        return f"never imports {top}"
    return None


def violations(source: str, path: Path) -> list[str]:
    """
    List what a file imports although its part may not.

    :param path: relative to the package's folder; need not exist.
    """
    part = path.parts[0] if len(path.parts) > 1 else path.stem
    if part not in MAY_IMPORT:
        return [f"{path}: {part!r} is not a known room; say in test_layers.py what it may import"]
    is_package = path.stem == "__init__"
    parts = path.parts[:-1] if is_package else path.with_suffix("").parts
    module = ".".join((PACKAGE, *parts))
    return [
        f"{path}:{line}: imports {name}, but {part} {why}"
        for line, name in imported_names(source, module, is_package)
        if (why := _objection(part, name))
    ]


FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def test_every_file_imports_only_what_its_part_may() -> None:
    """No file of the package breaks the import rules, in functions neither."""
    assert Path("core/ulid.py") in FILES
    assert [each for path in FILES for each in violations((ROOT / path).read_text("utf-8"), path)] == []


def _module(path: Path) -> str:
    """Name the module of a file, relative to the package's folder."""
    return ".".join(
        (PACKAGE, *(path.parent.parts if path.stem == "__init__" else path.with_suffix("").parts))
    )


def circle(sources: Mapping[str, str]) -> list[str]:
    """
    Return modules that import each other, also in functions or for types only; none where there are none.

    :param sources: by the module's name.
    """
    imports: dict[str, set[str]] = {}
    for module, source in sources.items():
        found = imports[module] = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module:
                named = {f"{node.module}.{alias.name}" for alias in node.names} & sources.keys()
                found |= named or ({node.module} & sources.keys())
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names} & sources.keys()
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other() -> None:
    """Neither directly nor by way of others, nor for types only."""
    assert circle({_module(path): (ROOT / path).read_text(encoding="utf-8") for path in FILES}) == []
    typed = "if TYPE_CHECKING:\n    from p import b"
    assert circle({"p.a": typed, "p.b": "def f():\n    import p.c", "p.c": "from p.a import x"}) != []


def test_no_room_has_the_name_of_something_public() -> None:
    """Importing the room would put it in the place of the public name, which is made when first asked for."""
    assert {path.parts[0] for path in FILES if len(path.parts) > 1} & set(airflow_changefeed.__all__) == set()


#: An import that each rule forbids, in each way to write one.
FORBIDDEN = (
    ("core/ulid.py", "def f():\n    import pyarrow"),
    ("core/ulid.py", "from airflow_changefeed import __version__"),
    ("core/deep/er.py", "from ...sources import base"),
    ("core/deep/__init__.py", "from ...export.commit import x"),
    ("exceptions.py", "import ulid"),
    ("sources/sqlite.py", "from airflow.sdk import Variable"),
    ("sources/sqlite.py", "import importlib\nimportlib.import_module('pyspark.sql')"),
    ("sources/sqlite.py", "from airflow_changefeed import ChangefeedHook"),
    ("sources/sqlite.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import airflow"),
    ("output/commit.py", "try:\n    import pyspark\nexcept ImportError:\n    pass"),
    ("output/commit.py", "import airflow_changefeed.spark.job"),
    ("spark/job.py", "async def f():\n    from airflow.sdk import get_current_context"),
    ("links/changefeed.py", "from ..operators import changefeed"),
    ("__init__.py", "from airflow_changefeed.hooks.changefeed import ChangefeedHook"),
    ("utils/strings.py", "import os"),
)
ALLOWED = (
    ("core/ulid.py", "import datetime\nimport ulid\nfrom .window import Window"),
    ("core/ulid.py", "if TYPE_CHECKING:\n    import pyarrow"),
    ("sources/mssql/__init__.py", "from . import types\nfrom ..base import FeedSource"),
    ("spark/job.py", "import pyspark\nfrom airflow_changefeed.export import commit"),
    ("hooks/changefeed.py", "from airflow.sdk import BaseHook\nfrom airflow_changefeed import __version__"),
)


def test_a_forbidden_import_is_found_and_an_allowed_one_is_not() -> None:
    """Wherever in the file it stands; what only a type checker reads is allowed."""
    assert [each for each in FORBIDDEN if len(violations(each[1], Path(each[0]))) != 1] == []
    assert [each for each in ALLOWED if violations(each[1], Path(each[0]))] == []


def test_importing_the_package_loads_nothing_heavy() -> None:
    """``import airflow_changefeed`` costs a DAG file nothing: no Airflow, Spark, Arrow, pandas or numpy."""
    heavy = {"airflow", "pyspark", "pyarrow", "pandas", "numpy", "fsspec"}
    heavy |= {"adbc_driver_sqlite", "mssql_python"}
    code = f"import sys, {PACKAGE}; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []
