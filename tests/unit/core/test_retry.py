# SPDX-License-Identifier: Apache-2.0
"""Trying again: for how long, counted from where the caller says."""

from __future__ import annotations

import time

import pytest

from airflow_changefeed.core.retry import growing, retry


class Busy(Exception):
    """What is worth another try."""


@pytest.mark.parametrize(("from_start", "tries"), [(True, 2), (False, 3)])
def test_seconds_count_from_the_first_failure_or_from_the_first_call(
    from_start: bool, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where somebody waits for an answer, a call that is slow to fail counts."""
    clock, called = [0.0], []

    def fail() -> None:
        called.append(1)
        clock[0] += 10
        raise Busy

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(Busy):
        retry(
            fail, lambda error: isinstance(error, Busy), growing(0.1, 1.0), seconds=15, from_start=from_start
        )
    assert len(called) == tries
