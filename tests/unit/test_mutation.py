# SPDX-License-Identifier: Apache-2.0
"""The table of breaks: each applies to what the code is today, and each promise has two of them."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.mutation.breaks import PACKAGE, PROJECT, Break, StaleBreakError
from tests.mutation.table import BREAKS

#: In bold on the page, too. What its summary says of crashes, the others say one by one.
HEADINGS = {"Promised", "Provided that", "Not promised", "Crashes"}
PAGE = PROJECT / "docs" / "explanation" / "promises.md"


def test_a_break_applies_and_leaves_code_that_can_be_read() -> None:
    """Nothing but the break must fail the tests that notice it."""
    for one in BREAKS:
        path = PROJECT / PACKAGE / one.file
        whole = path.read_text(encoding="utf-8")
        broken = one.broken(whole)
        assert broken != whole, one.name
        if path.suffix == ".py":
            compile(broken, path, "exec")
        for test in one.tests:
            file, _, function = test.partition("::")
            text = (PROJECT / file).read_text(encoding="utf-8")
            assert not function or f"def {function.partition('[')[0]}(" in text, (one.name, test)


def test_each_promise_has_two_breaks() -> None:
    """By its name on the page of promises."""
    bold = re.findall(r"(?m)^(?:- )?\*\*([A-Z][a-z ]+)[.:]?\*\*", PAGE.read_text(encoding="utf-8"))
    promised = set(bold) - HEADINGS
    counts = Counter(one.promise for one in BREAKS)
    assert counts.keys() <= promised
    assert [name for name in promised if counts[name] < 2] == []
    names = Counter(one.name for one in BREAKS)
    assert [name for name, count in names.items() if count > 1] == []


CODE = """
LIMIT: int = 5

class One:
    def first(self):
        return 1

    def second(self):
        return 1 + 1
"""


@pytest.mark.parametrize(
    ("symbol", "before", "broken"),
    [
        ("One.first", "return 1", CODE.replace("return 1\n\n", "return 2\n\n")),
        ("LIMIT", "5", CODE.replace("5", "2")),
    ],
)
def test_a_break_changes_its_symbol_alone(symbol: str, before: str, broken: str) -> None:
    """Wherever else the same text stands."""
    after = before[:-1] + "2"
    assert Break("one", "Order", "file.py", symbol, {before: after}, ()).broken(CODE) == broken


@pytest.mark.parametrize(
    ("symbol", "before", "named"),
    [
        ("One.third", "return 1", r"'One\.third' stands 0 times"),
        ("One.second", "return 2", "stands 0 times in One.second"),
        ("One.second", "1", "stands 2 times in One.second"),
        ("", "nothing", "stands 0 times in all of file.py"),
    ],
)
def test_a_break_that_no_longer_applies_says_so(symbol: str, before: str, named: str) -> None:
    """Code was moved or changed: the break must be written anew, not be passed over."""
    with pytest.raises(StaleBreakError, match=named):
        Break("one", "Order", "file.py", symbol, {before: "x"}, ()).broken(CODE)
