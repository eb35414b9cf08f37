# SPDX-License-Identifier: Apache-2.0
"""What people hold on to stays, as docs/reference/compatibility.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.changelog import PROJECT, UNRELEASED, sections
from tests.tools.check_wheel import declared_version
from tests.tools.released.place import RELEASED, versions
from tests.tools.released.surface import broken, surface

#: Lines of older versions that went as the page says, below a comment with the version that announced it.
REMOVED = Path(__file__).parents[1] / "fixtures" / "removed.txt"

OLD = """[python]
fold function
fold() spark positional required
fold() at = None

[commands]
seal command
seal --until required
"""


def _removed() -> set[str]:
    lines = REMOVED.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def _is_released(version: str) -> bool:
    changelog = sections((PROJECT / "CHANGELOG.md").read_text(encoding="utf-8"))
    return version in {section.name for section in changelog if section.name != UNRELEASED}


def test_what_is_new_breaks_nothing() -> None:
    """Parameters with defaults, options, and new things whatever they require."""
    new = (
        OLD.replace("fold() at", "fold() base = None\nfold() at")
        + "seal --shard option\nsplit command\nsplit --at required\n"
    )
    assert broken(OLD, new) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("fold() at = None\n", "", ["- [python] fold() at = None"]),
        ("at = None", "at = 1", ["- [python] fold() at = None"]),
        ("at = None\n", "at = None\nfold() feed required\n", ["+ [python] fold() feed required"]),
        (
            "--until required",
            "--to required",
            ["- [commands] seal --until required", "+ [commands] seal --to required"],
        ),
    ],
)
def test_what_breaks_people_is_named(before: str, after: str, expected: list[str]) -> None:
    """What went, what changed, and what is newly required."""
    assert broken(OLD, OLD.replace(before, after)) == expected


def test_the_present_surface_keeps_what_released_versions_have() -> None:
    """Before its release a version's own surface is written again as often as it changes."""
    present, newest = surface(), versions()[-1]
    kept = (RELEASED / newest / "surface.txt").read_text(encoding="utf-8")
    if newest == declared_version() and not _is_released(newest):
        assert kept == present, "the surface changed: run make surface, and look at the difference"
    found = {
        line
        for version in versions()
        for line in broken((RELEASED / version / "surface.txt").read_text(), present)
    }
    assert found - _removed() == set(), (
        "People use these lines of a released version. Bring them back; or let them go as "
        "docs/reference/compatibility.md says, and write them into tests/fixtures/removed.txt"
    )
    assert _removed() - found == set(), (
        "these lines of tests/fixtures/removed.txt are still there: take them out"
    )


def test_the_present_version_has_fixtures_once_it_is_released() -> None:
    """``make fixtures`` comes before the changelog's heading."""
    released = [version for version in [declared_version()] if _is_released(version)]
    assert set(released) <= set(versions())
