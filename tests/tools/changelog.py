# SPDX-License-Identifier: Apache-2.0
"""
The changelog decides the version: a tag, the package's version and the newest heading must agree.

``python -m tests.tools.changelog [TAG]`` prints the notes of a release; exits with 1 and says what does not
agree. Without a tag it checks what is not released yet.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from packaging.version import Version

import airflow_changefeed
from tests.tools.check_wheel import PROJECT, declared_version

UNRELEASED = "Unreleased"
_HEADING = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<day>\d{4}-\d\d-\d\d))?[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """
    A section of the changelog.

    :param name: a version, or ``Unreleased``.
    :param day: of the release, None where the heading has none.
    :param notes: what stands below the heading.
    """

    name: str
    day: str | None
    notes: str


def sections(text: str) -> list[Section]:
    """Return the sections of a changelog in order, without empty ones."""
    found = list(_HEADING.finditer(text))
    ends = [*(match.start() for match in found[1:]), len(text)]
    cut = [
        Section(match["name"], match["day"], text[match.end() : end].strip())
        for match, end in zip(found, ends, strict=True)
    ]
    return [section for section in cut if section.notes]


def problems(changelog: Sequence[Section], versions: Collection[str], tag: str | None) -> list[str]:
    """
    Say what does not agree, one sentence each.

    :param versions: of the package, from each place where it is written.
    :param tag: for example ``v0.1.0``; None before a release.
    """
    if len(set(versions)) != 1:
        return [f"pyproject.toml and airflow_changefeed.__version__ differ: {' and '.join(versions)}"]
    (version,) = set(versions)
    newest = changelog[0]
    if tag is None:
        released = [section.name for section in changelog if section.name != UNRELEASED]
        if newest.name == UNRELEASED and released and Version(version) <= Version(released[0]):
            return [f"there are unreleased changes, and {released[0]} is released: raise version {version}"]
        return []
    found = (
        []
        if tag == f"v{version}"
        else [f"the tag is {tag!r}, and the version {version}: expected 'v{version}'"]
    )
    if newest.name != version or newest.day is None:
        found.append(
            f"the changelog begins with [{newest.name}]{f' - {newest.day}' if newest.day else ''}: "
            f"expected [{version}] - YYYY-MM-DD"
        )
    return found


def main(arguments: Sequence[str]) -> int:
    """Print the notes of the newest section; 1 if something does not agree."""
    changelog = sections((PROJECT / "CHANGELOG.md").read_text(encoding="utf-8"))
    versions = (declared_version(), airflow_changefeed.__version__)
    wrong = problems(changelog, versions, arguments[0] if arguments else None)
    for sentence in wrong:
        print(f"FAILED: {sentence}", file=sys.stderr)
    if not wrong:
        print(changelog[0].notes)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
