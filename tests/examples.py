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

    :param page: path below ``docs``.
    :param places: paths that the page names, and where they are in this test.
    """
    text = (DOCS / page).read_text(encoding="utf-8")
    for there, here in places.items():
        text = text.replace(there, str(here))
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run_example(code: str, names: dict[str, Any]) -> None:
    """Run a block with what the blocks before it have made."""
    exec(compile(code, "documentation", "exec"), names)  # noqa: S102 - our own pages
