# SPDX-License-Identifier: Apache-2.0
"""
Check what changed: its style, all types, the unit tests nearest to it, and what every source promises.

``python -m tests.tools.check [--since COMMIT] [pytest's options]``. Changed is what differs from COMMIT (by
default from where this branch left main), committed or not, and files that Git does not know yet.

The tests are those of ``tests/unit`` that changed, and for each other file those that import it. If none do,
those that import what imports it, and so on: a change deep down runs its own tests, not all that stand on it.
If only one does, those of the next step run as well. Of many, a few run: those whose names have the file's
name, or are most like its path. What nothing imports has the tests with its name, or those of its folder
(``FOLDERS``).
After a change of sources, cursors or consumers the contract suite runs as well, on the embedded engine and
without its races and Spark: a minute.
``make test`` runs everything.

Style takes a second. The first run fills mypy's cache, minutes; afterwards types take seconds. The tests take
as long as those that are chosen need: minutes where many use a module; ``-k NAME`` runs fewer. All
steps run, also behind one that failed, as their results do not depend on each other; the last lines say which
failed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic

PROJECT = Path(__file__).resolve().parents[2]
UNIT, PACKAGE = "tests/unit/", "airflow_changefeed/"
#: Of the whole project: they take a second, and say where something does not belong.
ALWAYS = ("tests/unit/test_layers.py", "tests/unit/test_architecture.py")
#: Tests of one file that are not too many.
MOST = 10
#: Of more than those, the ones whose names are most like the path of the file.
FEW = 5
#: Tests of files that no Python imports, by folder: patterns.
FOLDERS = {
    "airflow_changefeed/cli/": ("tests/unit/airflow/test_cli.py",),
    "airflow_changefeed/sql/mssql/": ("tests/unit/sql/test_*.py", "tests/unit/sources/test_mssql_errors.py"),
    "airflow_changefeed/sql/sqlite/": ("tests/unit/sources/test_sqlite_*.py",),
}
CONTRACT = "tests/integration/contract/"
#: What the contract suite shows on the embedded engine. What is for SQL Server only, it shows on a server.
IN_CONTRACT = (
    *(f"{PACKAGE}{folder}/" for folder in ("sources", "cursors", "consumers", "sql/sqlite")),
    CONTRACT,
)
NOT_IN_CONTRACT = (f"{PACKAGE}sources/mssql/", f"{CONTRACT}mssql_")
#: How a step ended that did not fail, by its exit status; pytest's 5 says that ``-k`` has chosen no test.
ENDS = {0: "ok", 5: "none"}
Graph = Mapping[str, Sequence[str]]
Step = tuple[str, Sequence[str]]


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
    nearest: set[str] = set()
    seen, wave = {file}, [file]
    while wave:
        wave = sorted({other for each in wave for other in graph.get(each, ())} - seen)
        seen.update(wave)
        found = {each for each in wave if _is_test(each)}
        # Helpers of tests are looked through: who uses them is as near.
        helpers = [each for each in wave if each.startswith(UNIT) and not _is_test(each)]
        for helper in helpers:
            users = [each for each in graph.get(helper, ()) if each.startswith(UNIT) and each not in seen]
            seen.update(users)
            found.update(filter(_is_test, users))
            helpers += [each for each in users if not _is_test(each)]
        if nearest and found:
            return nearest | _few(file, found)
        if len(found) > 1:
            return _few(file, found) or found
        nearest = nearest or found
    return nearest


def _few(file: str, tests: Collection[str]) -> set[str]:
    """Return tests of a file; if they are many, those with its name, and a few most like its path."""
    if len(tests) <= MOST:
        return set(tests)
    words = set(re.findall("[a-z]+", file.removeprefix(PACKAGE).removesuffix(".py")))
    shared = {each: len(words.intersection(Path(each).stem.split("_"))) for each in tests}
    kin = sorted(filter(shared.__getitem__, tests), key=lambda each: (-shared[each], each))
    return {*kin[:FEW], *(each for each in tests if Path(file).stem in Path(each).stem)}


def chosen_tests(changed: Iterable[str], graph: Graph) -> tuple[list[str], list[str]]:
    """Return the tests of changed files, and the files that no unit test is found for."""
    chosen: set[str] = set()
    without: list[str] = []
    for file in changed:
        if _is_test(file):
            found = {file}
        elif file.endswith(".py"):
            found = (nearest_tests(file, graph) or _named(file)) | _in_folder(file)
        else:
            found = _naming(Path(file).name) | _in_folder(file)
        chosen |= found
        without += [] if found else [file]
    return sorted(chosen), without


def _is_test(file: str) -> bool:
    return file.startswith(UNIT) and Path(file).name.startswith("test_")


def _tests(pattern: str = f"{UNIT}**/test_*.py") -> dict[str, Path]:
    return {str(each.relative_to(PROJECT)): each for each in PROJECT.glob(pattern)}


def _named(file: str) -> set[str]:
    """Return the tests with the name of a module, or of its folder, as commands are found by theirs."""
    stem = Path(file).stem.strip("_")
    return {name for name, each in _tests().items() if each.stem.endswith(f"_{stem}")}


def _naming(name: str) -> set[str]:
    return {test for test, each in _tests().items() if name in each.read_text(encoding="utf-8")}


def _in_folder(file: str) -> set[str]:
    patterns = [each for folder, found in FOLDERS.items() if file.startswith(folder) for each in found]
    return {test for each in patterns for test in _tests(each)}


def is_in_contract(file: str) -> bool:
    """Return whether the contract suite shows a change of a file on the embedded engine."""
    return file.startswith(IN_CONTRACT) and not file.startswith(NOT_IN_CONTRACT)


def steps_of_tests(changed: Iterable[str], tests: Sequence[str], more: Sequence[str]) -> list[Step]:
    """
    Return the steps that test what changed.

    :param tests: files of unit tests.
    :param more: options of pytest's.
    """
    pytest = [sys.executable, "-m", "pytest", "-q"]
    end = ["with", *more] if more else []
    steps: list[Step] = [(" ".join([f"pytest: {len(tests)} files of tests", *end]), [*pytest, *tests, *more])]
    if any(map(is_in_contract, changed)):
        embedded = ["env", "-u", "CHANGEFEED_TEST_MSSQL", *pytest, CONTRACT]
        chosen = ["-m", "not nightly and not spark and not races"]
        steps.append((" ".join(["pytest: the contract suite", *end]), [*embedded, *chosen, *more]))
    return steps


def run_steps(steps: Iterable[Step]) -> int:
    """Run commands, each with what it does; say how each ended, and return 1 if one failed."""
    lines, failed = [], 0
    for what, command in steps:
        begin = monotonic()
        status = subprocess.call(command, cwd=PROJECT)
        word = ENDS.get(status, "FAILED")
        failed |= word == "FAILED"
        lines.append(f"{word:6} {monotonic() - begin:6.1f} s  {what}")
    print("", *lines, sep="\n")
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, and return the exit status."""
    parser = ArgumentParser(prog="tests.tools.check", description="Check what changed.")
    parser.add_argument("--since", help="commit to compare with (default: where this branch left main)")
    options, more = parser.parse_known_args(arguments)
    changed = changed_files(options.since or None)
    python = [file for file in changed if file.endswith(".py")]
    tests, without = chosen_tests(changed, import_graph())
    tests = sorted({*ALWAYS, *tests})
    print(f"Changed: {len(changed)} files. Tests: {' '.join(tests)}")
    if without:
        print(f"Without unit tests (make test has more): {' '.join(without)}")
    bin_ = Path(sys.executable).parent
    ruff, files = str(bin_ / "ruff"), f"of {len(python)} files"
    steps: list[Step] = [
        (f"ruff check: style {files}", [ruff, "check", "--output-format", "concise", *python]),
        (f"ruff format: lines {files}", [ruff, "format", "--check", *python]),
        ("mypy: all types", [str(bin_ / "mypy")]),
        *steps_of_tests(changed, tests, more),
    ]
    return run_steps(steps if python else steps[2:])


if __name__ == "__main__":
    sys.exit(main())
