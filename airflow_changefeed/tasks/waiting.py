# SPDX-License-Identifier: Apache-2.0
"""Waiting until a window has ended by the clock of the database."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_changefeed.core.values import duration, floor_to_millisecond, format_time, parse_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import FutureTimeError, NotYetError, StoppedError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_changefeed.sources.base import FeedSource


if TYPE_CHECKING:
    _Base = BaseOperator
else:
    _Base = object


#: The default of ``wait_timeout``.
WAIT_TIMEOUT = timedelta(hours=1)
#: Reads it.
WAIT_LENGTH = duration(shortest=timedelta(0))
#: Longest wait in the task itself: deferring takes a start of the task more.
SLEEP = timedelta(minutes=1)
#: Shortest pause, so that a clock that stands still is not asked in a busy loop.
_SHORTEST = timedelta(seconds=0.1)
#: Longest deferral: the clock is looked at again at least daily.
_LONGEST = timedelta(days=1)


class WaitsForWindow(_Base):
    """
    A task that waits until a window has ended.

    The database's clock alone says when that is. Airflow's clocks only measure how long to wait until it is
    looked at again, so they may differ from it.
    """

    feed: str
    wait_timeout: timedelta | float | str
    _is_killed = False
    _waits_since: datetime | None = None

    def on_kill(self) -> None:
        """End soon: Airflow's handler of SIGTERM calls this and lets the task go on."""
        self._is_killed = True
        super().on_kill()

    def execute_complete(self, context: Context, event: object = None, waits_since: str | None = None) -> Any:
        """
        Begin again after a deferral: whatever was checked before it may have changed.

        :param event: the trigger's; that it came says nothing about the database's clock.
        :param waits_since: when the task first began to wait, by Airflow's clock. ``dag.test`` loses it.
        """
        self._waits_since = parse_time(waits_since) if waits_since is not None else None
        try:
            return self.execute(context)
        finally:
            # dag.test retries with the same object.
            self._waits_since = None

    def _wait_until_ended(self, window: Window, source: FeedSource) -> None:
        """Return when a window has ended; defer if that takes more than a minute. Hold no lease meanwhile."""
        slept = timedelta(0)
        while (ahead := window.end - (clock := source.now())) > timedelta(0):
            ends = f"window {window} ends in {_text(ahead)} by the database's clock, {format_time(clock)}"
            if ahead > SLEEP:
                present = floor_to_millisecond(datetime.fromtimestamp(time.time(), timezone.utc))
                since = self._waits_since or present
                waited = max(present - since, timedelta(0))
                limit = WAIT_LENGTH(self.wait_timeout)
                ends += f" (this machine's: {format_time(present)})"
                if ahead > limit - waited:
                    already = f", and has waited {_text(waited)}" if waited else ""
                    raise FutureTimeError(
                        f"{ends}; the task waits {_text(limit)} at most{already}. Clear the task when "
                        "the window has ended, or raise wait_timeout",
                        start=window.start,
                        end=window.end,
                        now=clock,
                    )
                # A triggerer whose clock is ahead wakes the task too early again and again: a minute between.
                if slept or self._waits_since is None:
                    # A feed that does not exist is an error now, not after the wait.
                    self._check_feed(source)
                    source.close()
                    self.log.info("Deferring: %s", ends)
                    self._defer_until(present + min(ahead, _LONGEST), since)
            if slept > 2 * SLEEP:
                raise NotYetError(
                    f"{ends}, after {_text(slept)} of waiting. A retry looks again",
                    start=window.start,
                    end=window.end,
                    now=clock,
                )
            if not slept:
                self.log.info("Waiting: %s", ends)
            pause = min(max(ahead, _SHORTEST), SLEEP)
            self._sleep(window, pause)
            slept += pause

    def _check_feed(self, source: FeedSource) -> None:
        source.feed(self.feed)

    def _defer_until(self, moment: datetime, since: datetime) -> NoReturn:
        from airflow.providers.standard.triggers.temporal import DateTimeTrigger

        self.defer(
            trigger=DateTimeTrigger(moment),
            method_name=self.execute_complete.__name__,
            kwargs={"waits_since": format_time(since)},
        )

    def _pause(self, seconds: float) -> None:
        """Wait, but no longer than the task may go on."""
        end = time.monotonic() + seconds
        while not self._is_killed and (left := end - time.monotonic()) > 0:
            # A signal's handler runs at once, but the sleep it interrupts is slept to its end.
            time.sleep(min(left, 1.0))

    def _sleep(self, window: Window, length: timedelta) -> None:
        self._pause(length.total_seconds())
        if self._is_killed:
            raise StoppedError(
                f"task {self.task_id!r}: stopped on request while it waited for the end of window "
                f"{window}; nothing was done yet",
                start=window.start,
                end=window.end,
            )


def _text(length: timedelta) -> str:
    return str(timedelta(seconds=round(length.total_seconds())))
