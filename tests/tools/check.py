# SPDX-License-Identifier: Apache-2.0
"""
Check what changed, in seconds: its style, all types, and the unit tests nearest to it.

``python -m tests.tools.check [--since COMMIT] [pytest's options]``. Changed is what differs from COMMIT (by
default from where this branch left main), committed or not, and files that Git does not know yet.

The tests are those of ``tests/unit`` that changed, and for each other file those that import it. If none do,
those that import what imports it, and so on: a change deep down runs its own tests, not all that stand on it.
Where they are many, those with the file's name count. For a file that is not Python, those that name it.
``make test`` runs everything.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
UNIT, PACKAGE = "tests/unit/", "airflow_changefeed/"
#: Of the whole project: they take a second, and say where something does not belong.
ALWAYS = ("tests/unit/test_layers.py", "tests/unit/test_architecture.py")
#: Tests of one file that are not too many.
MOST = 10
Graph = Mapping[str, Sequence[str]]


def _run(*words: str) -> str:
    return subprocess.run(words, cwd=PROJECT, check=True, capture_output=True, text=True).stdout


def changed_files(since: str | None = None) -> list[str]:
    """
    Return the files that differ from a commit and are still there.

    :param since: None for where this branch left main; without a main, or on it, the last commit.
    """
    if since is None:
        command = ("git", "merge-base", "HEAD", "main")
        found = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        since = found.stdout.strip() or "HEAD"
    names = _run("git", "diff", "--name-only", "--diff-filter=d", since).splitlines()
    return sorted({*names, *_run("git", "ls-files", "--others", "--exclude-standard").splitlines()})


def import_graph() -> Graph:
    """Return for each Python file those that import it, also within functions and by names in texts."""
    found = _run(
        *(str(Path(sys.executable).with_name("ruff")), "analyze", "graph", "--direction", "dependents"),
        *("--detect-string-imports", "--min-dots", "2", PACKAGE, "tests"),
    )
    graph: Graph = json.loads(found)
    return graph


def nearest_tests(file: str, graph: Graph) -> set[str]:
    """Return the unit tests that import a file; if there are none, those of what imports it, and so on."""
    seen, wave = {file}, [file]
    while wave:
        wave = sorted({other for each in wave for other in graph.get(each, ())} - seen)
        seen.update(wave)
        found = {each for each in wave if _is_test(each)}
        # Helpers of tests are looked through: who uses them is as near.
        helpers = [each for each in wave if each.startswith(UNIT)]
        found |= {test for each in helpers for test in graph.get(each, ()) if _is_test(test)}
        if found:
            own = {each for each in found if Path(file).stem in Path(each).stem}
            return own if own and len(found) > MOST else found
    return set()


def chosen_tests(changed: Iterable[str], graph: Graph) -> tuple[list[str], list[str]]:
    """Return the tests of changed files, and the files that no unit test is found for."""
    chosen: set[str] = set()
    without: list[str] = []
    for file in changed:
        if _is_test(file):
            found = {file}
        elif file.endswith(".py"):
            found = nearest_tests(file, graph)
        else:
            found = _naming(Path(file).name)
        chosen |= found
        without += [] if found else [file]
    return sorted(chosen), without


def _is_test(file: str) -> bool:
    return file.startswith(UNIT) and Path(file).name.startswith("test_")


def _naming(name: str) -> set[str]:
    files = (PROJECT / UNIT).rglob("test_*.py")
    return {str(each.relative_to(PROJECT)) for each in files if name in each.read_text(encoding="utf-8")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, and return the exit status."""
    parser = ArgumentParser(prog="tests.tools.check", description="Check what changed, in seconds.")
    parser.add_argument("--since", help="commit to compare with (default: where this branch left main)")
    options, more = parser.parse_known_args(arguments)
    changed = changed_files(options.since or None)
    python = [file for file in changed if file.endswith(".py")]
    tests, without = chosen_tests(changed, import_graph())
    print(f"Changed: {len(changed)} files. Tests: {' '.join(tests) or 'none'}")
    if without:
        print(f"Without unit tests (make test has more): {' '.join(without)}")
    bin_ = Path(sys.executable).parent
    steps = [[str(bin_ / "mypy")], [sys.executable, "-m", "pytest", "-q", *ALWAYS, *tests, *more]]
    if python:
        steps = [
            [str(bin_ / "ruff"), "check", "--output-format", "concise", *python],
            [str(bin_ / "ruff"), "format", "--check", *python],
            *steps,
        ]
    statuses = [subprocess.call(step, cwd=PROJECT) for step in steps]
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
