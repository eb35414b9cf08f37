# SPDX-License-Identifier: Apache-2.0
"""The protocol of captures: recording the changes of any table, and its events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from airflow_changefeed.core.capture import (
    CaptureGap,
    CaptureInfo,
    CaptureSpec,
    OnDdl,
)
from airflow_changefeed.core.feed import FeedStorage


class CaptureControl(Protocol):
    """
    Records the changes of any table, in the transaction that makes them.

    A capture's events are a feed with its name, which is read like any other. ``FeedReader.schema`` and
    ``stream`` return ``changefeed_ulid``, ``changefeed_time``, then:

    - ``name``: of the table, as the capture's spec has it. ``type``: ``add``, ``upd``, ``del``, or ``reset``,
      after which all rows of the table follow as ``add`` with ``is_snapshot``, with their changes among them;
      ``ready`` once all have followed; or ``ddl`` where the captured
      columns have changed.
    - ``is_snapshot``: whether the row already existed and was recorded by a snapshot or resync, or once more
      behind a merge that replaced the row of its key.
    - ``tid``: number of the transaction; null if unknown. It groups neighbouring events; numbers are
      eventually reused.
    - ``sequence``: the event's number in the shard, from 1 without gaps; only if the capture is with
      sequence.
    - ``epoch``: seconds since 1970 when the statement ran. ``captured_at``: the same, in milliseconds, UTC.
    - ``session_variables``: JSON object of those set, null without any. ``trace_context``: text.
    - ``ddl``: JSON object of ``statement`` (text or null), ``before`` and ``after`` (arrays of ``name`` and
      ``type``), ``by`` (text or null) and ``unrecorded`` (array of fields of ``old`` and ``new`` whose values
      in older rows no event has); null unless the type is ``ddl``.
    - ``old``, ``new``: structs of the captured columns; null if there is no such row.

    The schema's metadata contains the capture's :class:`~airflow_changefeed.core.capture.CaptureShape`.

    A capture has the resource version of its feed. It grows with each change: enabling, disabling,
    refreshing, resolving, an upgrade, and a change of a captured table's columns. A call that names an
    outdated version is refused (StaleVersionError, which carries the current one; nothing was changed;
    terminal); None skips the check.
    """

    def enable_capture(
        self,
        spec: CaptureSpec,
        *,
        snapshot: bool = False,
        storage: FeedStorage | None = None,
        resource_version: int | None = None,
    ) -> CaptureInfo:
        """
        Record changes from now on, of all tables of the capture or none.

        Idempotent for the same spec. A disabled capture is enabled again; changes made meanwhile are a gap.

        :param snapshot: also record the existing rows as ``add`` events, in short transactions behind the one
            that enables; a call that was interrupted is repeated, and continues.
        :param storage: of the tables of a new capture, as for ``set_up_feed``; its compression is that of the
            table of events.
        :raises SnapshotError: ``snapshot``, and a snapshot of a table runs into an output.
        :raises FeedSetupError: a table cannot be captured as requested, or the capture exists with
            another spec; names every reason; nothing was changed.
        """

    def disable_capture(self, name: str, *, resource_version: int | None = None) -> None:
        """
        Stop recording. The feed stays, so that it can be exported to its end; ``drop_feed`` drops everything.

        :raises CaptureNotFoundError: it does not exist; names the existing captures.
        """

    def refresh_capture(
        self,
        name: str,
        *,
        without: Sequence[str] = (),
        on_ddl: OnDdl | None = None,
        resource_version: int | None = None,
    ) -> CaptureInfo:
        """
        Capture the tables' current columns. Events already recorded keep theirs.

        For an operation with chosen columns, only dropped columns are removed. If the columns, their types or
        the key have changed, a ``ddl`` event is recorded in each shard that has events.

        :param without: columns to stop capturing, so that they can be dropped or altered.
        :param on_ddl: another policy for changes of columns; None keeps the present one.
        :raises FeedSetupError: a column's type is incompatible with the recorded values, or cannot be
            exported.
        """

    def captures(self) -> list[CaptureInfo]:
        """Return all captures, by name."""

    def capture(self, name: str) -> CaptureInfo:
        """
        Return one capture.

        :raises CaptureNotFoundError: it does not exist; names the existing captures.
        """

    def check_capture(self, name: str) -> list[CaptureGap]:
        """
        Check for unrecorded changes, as each seal does, and return the open gaps.

        ``seal`` raises CaptureGapError (terminal) while a gap is open.
        """

    def resolve_capture(
        self, name: str, *, note: str, by: str, resync: bool = False, resource_version: int | None = None
    ) -> CaptureInfo:
        """
        Close the open gaps, after a person has checked them.

        :param note: what was done about them.
        :param resync: record a ``reset`` and all current rows of each affected table, in short transactions,
            so that a fold of the events is correct from ``ready`` on. Without an open gap, continues what
            was interrupted, or does so for all tables, for example after adding a column that already has
            values.
        :raises SnapshotError: ``resync``, and a snapshot of a table runs into an output.
        :raises LockTimeoutError: the table is changed all the time, so its rows cannot be counted or
            recorded.
        """

    def capture_gaps(self, name: str) -> list[CaptureGap]:
        """Return all gaps of a capture, open or resolved, by number."""
