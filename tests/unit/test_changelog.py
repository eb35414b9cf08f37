# SPDX-License-Identifier: Apache-2.0
"""Tag, version and changelog agree before anything is released."""

from __future__ import annotations

import pytest

from tests.tools.changelog import problems, sections

HEAD = "# Changelog\n\nWords.\n\n"
RELEASED = "## [0.2.0] - 2027-01-31\n\n### Added\n\n- New.\n\n## [0.1.0] - 2026-12-01\n\n- First.\n"
LATER = "## [Unreleased]\n\n- Later.\n\n" + RELEASED


def _problems(text: str, version: str, tag: str | None) -> list[str]:
    return problems(sections(HEAD + text), [version, version], tag)


@pytest.mark.parametrize("before", ["", "## [Unreleased]\n\n"])
def test_a_release_has_the_notes_of_its_section(before: str) -> None:
    """The newest section, up to the next one; an empty one above it does not count."""
    assert _problems(before + RELEASED, "0.2.0", "v0.2.0") == []
    assert sections(HEAD + before + RELEASED)[0].notes == "### Added\n\n- New."


def test_what_does_not_agree_is_said() -> None:
    """The tag, the version and the newest heading, with the form that is expected."""
    expected = "expected [{}] - YYYY-MM-DD"
    for text, version, tag, said in (
        (RELEASED, "0.2.0", "0.2.0", "the tag is '0.2.0', and the version 0.2.0: expected 'v0.2.0'"),
        (RELEASED, "0.3.0", "v0.3.0", f"begins with [0.2.0] - 2027-01-31: {expected.format('0.3.0')}"),
        ("## [0.2.0]\n\n- New.\n", "0.2.0", "v0.2.0", f"begins with [0.2.0]: {expected.format('0.2.0')}"),
        (LATER, "0.2.0", "v0.2.0", f"begins with [Unreleased]: {expected.format('0.2.0')}"),
        (LATER, "0.2.0", None, "there are unreleased changes, and 0.2.0 is released: raise version 0.2.0"),
    ):
        (problem,) = _problems(text, version, tag)
        assert problem.endswith(said)


def test_two_versions_of_the_package_are_refused() -> None:
    """pyproject.toml has one, and the package another."""
    assert problems(sections(HEAD + RELEASED), ["0.2.0", "0.1.0"], "v0.2.0") == [
        "pyproject.toml and airflow_changefeed.__version__ differ: 0.2.0 and 0.1.0"
    ]


def test_the_next_version_may_have_changes() -> None:
    """Between releases the version is ahead of the newest heading."""
    assert _problems(LATER, "0.3.0", None) == []
