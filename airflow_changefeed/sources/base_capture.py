# SPDX-License-Identifier: Apache-2.0
"""The protocol of captures: what records the changes of any table, and what its events are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from airflow_changefeed.core.capture import (
    CaptureGap,
    CaptureInfo,
    CaptureRepair,
    CaptureSpec,
    RepairWay,
    UnexportableValue,
)


class CaptureControl(Protocol):
    """
    What records the changes of any table, in the transaction that makes them.

    The events of a capture are a feed of its name: all that reads feeds reads them. ``FeedReader.schema`` and
    ``stream`` give ``changefeed_ulid``, ``changefeed_time``, then:

    - ``name``: of the table, as the capture's spec has it. ``type``: ``add``, ``upd``, ``del``, or ``reset``,
      after which the table's rows are those that follow as ``add`` with ``is_snapshot``.
    - ``is_snapshot``: whether the row was there before, and was recorded when the capture was enabled or
      resolved.
    - ``tid``: of the transaction; null where it is not known. It groups neighbours and comes again some day.
    - ``sequence``: counts the shard's events from 1 without a gap; only where the capture is with sequence.
    - ``epoch``: seconds since 1970 when the statement ran. ``captured_at``: the same, in milliseconds, UTC.
    - ``session_variables``: JSON object of those that were set, null without any. ``trace_context``: text.
    - ``old``, ``new``: structs of the captured columns; null where there is no such row.

    The schema's metadata has the capture's :class:`~airflow_changefeed.core.capture.CaptureShape`.

    A capture has the resource version of its feed. It grows with each change: enabling, disabling,
    refreshing, resolving, an upgrade, and a change of the columns of a captured table beneath it. Whoever
    names the version that was seen is refused where it is not the present one any more (StaleVersionError,
    which tells the present one; nothing was changed; terminal); None takes the capture however it is.
    """

    def enable_capture(
        self, spec: CaptureSpec, *, snapshot: bool = False, resource_version: int | None = None
    ) -> CaptureInfo:
        """
        Record changes from now on; all tables of a capture or none.

        Harmless to repeat with the same spec; a capture that is disabled is enabled again, which is a gap
        where its tables were changed meanwhile.

        :param snapshot: record the rows that are there as ``add`` events, too, in the same transaction.
        :raises FeedSetupError: a table that cannot be captured as asked, or a capture of that name with
            another spec; names all reasons; nothing was changed; terminal.
        """

    def disable_capture(self, name: str, *, resource_version: int | None = None) -> None:
        """
        Stop recording. The feed stays, to be exported to its end; ``drop_feed`` drops all.

        :raises CaptureNotFoundError: there is none of that name; names those that there are; terminal.
        """

    def refresh_capture(
        self, name: str, *, without: Sequence[str] = (), resource_version: int | None = None
    ) -> CaptureInfo:
        """
        Capture the tables' present columns. Events that are recorded already keep theirs.

        Of an operation whose columns were chosen, only those that are gone are left out.

        :param without: columns to capture no longer, so that they may be dropped or given another type.
        :raises FeedSetupError: a column has a type that the recorded values do not fit, or no form that can
            be exported; terminal.
        """

    def captures(self) -> list[CaptureInfo]:
        """Return all captures, by name."""

    def capture(self, name: str) -> CaptureInfo:
        """
        Return one capture.

        :raises CaptureNotFoundError: there is none of that name; names those that there are; terminal.
        """

    def check_capture(self, name: str) -> list[CaptureGap]:
        """
        Look whether changes passed unseen, as each seal does, and return the gaps that are open.

        ``seal`` raises CaptureGapError (terminal) while there is one.
        """

    def resolve_capture(
        self, name: str, *, note: str, by: str, resync: bool = False, resource_version: int | None = None
    ) -> CaptureInfo:
        """
        Close the open gaps: a person has seen them.

        :param note: what was done about them.
        :param resync: record a ``reset`` and all rows that each affected table has now, in one
            transaction, so that whoever folds the events has the right state from there on. Without any open
            gap it does so for all tables, for example after a column was added that has values already.
        """

    def capture_gaps(self, name: str) -> list[CaptureGap]:
        """Return all gaps there ever were of a capture, by number."""

    def unexportable_values(
        self, name: str, *, event: int | None = None, column: str | None = None
    ) -> list[UnexportableValue]:
        """
        Return what a capture recorded and no export can carry, by event; reads all that it recorded.

        :param event: the only one that matters.
        :param column: of a captured table, likewise.
        :raises FeedSetupError: the database gives columns types, so a value is found by its export's error.
        """

    def repair_capture(
        self,
        name: str,
        way: RepairWay,
        value: str | None = None,
        *,
        event: int | None = None,
        column: str | None = None,
        note: str,
        by: str,
        dry_run: bool = False,
        resource_version: int | None = None,
    ) -> list[CaptureRepair]:
        """
        Put another value in the place of each recorded one that no export can carry; all or none.

        Nothing else can be replaced, so what was ever exported stays as it is.

        :param value: for ``RepairWay.VALUE``, as text: digits of a number, hexadecimal digits of bytes.
        :param event: of :meth:`unexportable_values`; None repairs all events, likewise ``column``.
        :param dry_run: change nothing, and return what would be done.
        :raises InvalidArgumentError: a value that does not fit, or cannot be told; names all; nothing was
            changed; terminal.
        :raises FeedSetupError: as :meth:`unexportable_values`.
        """

    def capture_repairs(self, name: str) -> list[CaptureRepair]:
        """Return what was ever repaired of a capture, by number."""
