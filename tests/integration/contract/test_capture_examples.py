# SPDX-License-Identifier: Apache-2.0
"""The examples of captures of Comdb2's Lua triggers, on every engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.capture import CaptureInfo, CaptureSpec
from tests.examples import run_example
from tests.integration.contract.captures import CaptureBench
from tests.integration.contract.engines import Engine, Table

EXAMPLES = Path(__file__).with_name("capture_examples.md")
_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
_TABLE = re.compile(r"\b(shop\.\w+)\b")
_COUNTED = (("n", "identity"),)


def _numbers(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "integer") for name in names)


#: The tables that each example tells of.
TABLES = {
    "Audit: insert, update, delete": [Table("shop.t", _COUNTED, _numbers("i", "j"))],
    "Other columns for each operation": [Table("shop.t", _numbers("i"), _numbers("j", "k", "l"))],
    "All columns that there are now": [Table("shop.t", _numbers("i"), _numbers("j"))],
    "Two tables, with a sequence": [Table(f"shop.t{n}", _numbers("i"), ()) for n in (1, 2)],
    "Watch: a value of every kind": [
        Table(
            "shop.t",
            _COUNTED,
            (("i", "integer"), ("d", "double"), ("c", "text"), ("b", "bytes"), ("t", "time")),
        )
    ],
    "Transactions": [Table("shop.t", _COUNTED, (("data", "text"),))],
}


def _sections() -> dict[str, list[tuple[str, str]]]:
    """Return the blocks below each heading, with their language; below none, those before the first."""
    first, *others = re.split(r"^### ", EXAMPLES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = {"": first, **dict(part.split("\n", 1) for part in others)}
    return {heading: _BLOCK.findall(text) for heading, text in sections.items()}


@dataclass
class _Source:
    """A source that leaves unguarded what its database cannot guard; all else is the source's own."""

    bench: CaptureBench

    def enable_capture(self, spec: CaptureSpec) -> CaptureInfo:
        """Enable a capture."""
        info: CaptureInfo = self.bench.source.enable_capture(
            replace(spec, guard_schema=self.bench.engine.guards_schema)
        )
        return info

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bench.source, name)


def _transactions(engine: Engine, block: str) -> Iterator[list[str]]:
    """Return the statements of each transaction of a block, as the engine's programs write them."""
    group: list[str] | None = None
    for line in block.splitlines():
        if line == "begin transaction":
            group = []
        elif line == "commit":
            yield group or []
            group = None
        else:
            statement = _TABLE.sub(r'"\1"', line)
            if engine.name == "sqlite":
                statement = re.sub(r"\b0x([0-9a-f]+)\b", r"x'\1'", statement)
            if group is None:
                yield [statement]
            else:
                group.append(statement)


def test_every_example_is_run() -> None:
    """The file has those that are listed here, and no other."""
    assert [heading for heading in _sections() if heading] == list(TABLES)


@pytest.mark.parametrize("heading", TABLES)
def test_an_example_gives_the_events_below_it(engine: Engine, heading: str) -> None:
    """Events, their values and their order are those that the file shows."""
    for table in TABLES[heading]:
        engine.create_table(table)
    bench = CaptureBench(engine, engine.source())
    names: dict[str, Any] = {"source": _Source(bench)}
    sections, said = _sections(), StringIO()
    expected = ""
    with redirect_stdout(said):
        for language, block in sections[""] + sections[heading]:
            if language == "python":
                run_example(block, names)
            elif language == "sql":
                for statements in _transactions(engine, block):
                    bench.run(*statements)
            else:
                expected += block
    assert expected
    assert said.getvalue() == expected
