# SPDX-License-Identifier: Apache-2.0
"""
Judge the JUnit reports of a run by tiers: fail where a test was expected and did not run.

``python -m tests.tools.check_report FOLDER ALLOWED_SKIPS FAILED_CHECKS TIER...`` reads ``FOLDER/TIER.xml`` of
each tier, prints what is wrong and, on the last line, ``N passed, N failed``; FAILED_CHECKS (how many checks
without a report failed before) is added to the latter.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree

_SUITES = ("tests.unit", "tests.integration", "tests.system")
#: Of each tier, and each target with a folder of its own, the folders of which tests must have run.
EXPECTED = {
    "test": _SUITES,
    "test-more": _SUITES,
    "soak": _SUITES,
    "matrix": ("tests.unit", "tests.system"),
    "observability": ("tests.unit", "tests.observability"),
    **{
        target: (f"tests.{target}",)
        for target in ("browser", "operators", "readers", "stores", "tsql", "walks")
    },
}


@dataclass(frozen=True)
class Outcome:
    """
    One test's result.

    :param name: ``tests.unit.test_x::test_y``, parameters included.
    :param result: ``passed``, ``failed``, ``skipped`` or ``xfailed``.
    :param message: pytest's words for a skip or a failure.
    :param answer: what the test recorded as its ``answer``.
    """

    name: str
    result: str
    message: str = ""
    answer: str = ""


def _outcome(case: ElementTree.Element) -> Outcome:
    # pytest-xdist names the group behind a test, and a group has no place in the name.
    test = re.sub(r"@[^@\]]*$", "", case.get("name") or "")
    name = f"{case.get('classname')}::{test}"
    for tag in ("failure", "error", "skipped"):
        found = case.find(tag)
        if found is not None:
            expected = found.get("type") == "pytest.xfail"
            result = "failed" if tag != "skipped" else "xfailed" if expected else "skipped"
            return Outcome(name, result, found.get("message") or "")
    answers = (each.get("value") or "" for each in case.iter("property") if each.get("name") == "answer")
    return Outcome(name, "passed", answer=next(answers, ""))


def read_report(path: Path) -> list[Outcome]:
    """Read every test's result from a JUnit file that pytest wrote; a missing or broken file raises."""
    # Written by our own pytest run a moment ago, so not hostile.
    return [_outcome(case) for case in ElementTree.parse(path).iter("testcase")]  # noqa: S314 - pytest's own


def read_allowed(path: Path) -> list[str]:
    """Read the allow-list: one ``fnmatch`` pattern of test names per line, ``#`` begins a comment."""
    lines = (line.split("#", 1)[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def problems(tier: str, outcomes: Sequence[Outcome], allowed: Sequence[str]) -> list[str]:
    """
    Say what did not run although it should have.

    :param tier: one of ``EXPECTED``, perhaps with a version behind it.
    :param allowed: patterns of tests that may be skipped.
    :return: one sentence per problem; failed tests are not among them.
    """
    found = [
        f"{tier}: no test of {suite.replace('.', '/')} ran"
        for suite in EXPECTED[tier.rstrip("-.0123456789")]
        if not any(o.name.startswith(f"{suite}.") and o.result in ("passed", "failed") for o in outcomes)
    ]
    found += [
        f"{tier}: {o.name} was skipped ({o.message}) and is not on the list of allowed skips"
        for o in outcomes
        if o.result == "skipped" and not any(fnmatchcase(o.name, pattern) for pattern in allowed)
    ]
    return found


def main(arguments: Sequence[str]) -> int:
    """Print the problems and the counts; 1 if anything failed or did not run."""
    folder, allow_list, checks, *tiers = arguments
    passed, failed = 0, int(checks)
    for tier in tiers:
        try:
            outcomes = read_report(Path(folder, f"{tier}.xml"))
        except (OSError, ElementTree.ParseError) as error:
            wrong = [f"{tier}: pytest left no report: {error}"]
        else:
            wrong = problems(tier, outcomes, read_allowed(Path(allow_list)))
            passed += sum(outcome.result == "passed" for outcome in outcomes)
            failed += sum(outcome.result == "failed" for outcome in outcomes)
        for sentence in wrong:
            print(f"FAILED: {sentence}")
        failed += len(wrong)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
