# SPDX-License-Identifier: Apache-2.0
"""Attempts that outlive their tasks or meet, on object stores: the same tests as on disks, over HTTP."""

from tests.unit.export.test_commit import (  # noqa: F401 - collected here with the stores' outputs
    one_thread,
    test_a_newer_attempt_that_stops_anywhere_is_not_harmed,
    test_a_zombie_does_no_harm_at_any_step,
    test_killed_anywhere_a_commit_can_go_on,
    test_two_attempts_at_once_leave_the_newer_one,
)
