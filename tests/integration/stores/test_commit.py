# SPDX-License-Identifier: Apache-2.0
"""The commit protocol on object stores: the same tests as on disks, over HTTP."""

from tests.unit.export.test_commit import (  # noqa: F401 - collected here with the stores' outputs
    one_thread,
    test_killed_anywhere_and_retried_gives_the_same,
    test_two_attempts_at_once_leave_the_newer_one,
)
