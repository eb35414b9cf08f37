# SPDX-License-Identifier: Apache-2.0
"""The examples of the documentation, for tests that run them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"


def examples(page: str, places: Mapping[str, object], language: str = "python") -> list[str]:
    """
    Return a page's blocks of a language, in order.

    :param page: path below ``docs``, with ``#anchor`` the section below that heading.
    :param places: paths that the page names, and where they are in this test.
    """
    text = section(page)
    for there, here in places.items():
        text = text.replace(there, str(here))
    return blocks(text, language)


def blocks(text: str, language: str = "python") -> list[str]:
    """Return a text's blocks of a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def section(page: str) -> str:
    """Return a page's text, or with ``#anchor`` the section of that heading, up to the next of its level."""
    path, _, anchor = page.partition("#")
    text = (DOCS / path).read_text(encoding="utf-8")
    if not anchor:
        return text
    outside = re.sub(
        r"^```.*?^```", lambda block: "." * len(block.group()), text, flags=re.DOTALL | re.MULTILINE
    )
    headings = [
        (len(found[1]), re.sub(r"[^\w\- ]", "", found[2].strip().lower()).replace(" ", "-"), found.start())
        for found in re.finditer(r"^(#+) (.*)$", outside, re.MULTILINE)
    ]
    ((level, start),) = [(level, start) for level, slug, start in headings if slug == anchor]
    ends = [begins for depth, _, begins in headings if begins > start and depth <= level]
    return text[start : min(ends, default=len(text))]


def run_example(code: str, names: dict[str, Any]) -> None:
    """Run a block with what the blocks before it have made."""
    exec(compile(code, "documentation", "exec"), names)  # noqa: S102 - our own pages
