# SPDX-License-Identifier: Apache-2.0
"""Faults of an installation, a feed, a consumer or an export, their remedies, and commands to paste."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import Enum

from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.core.values import duration, one_of, read_values
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.exceptions import InvalidArgumentError, visible

#: Roles of a feed that a connection can be checked for; operators are readers too.
ROLES = ("readers", "operators")

#: In place of the connection, which only those know who opened the source: :func:`with_conn_id`.
CONN_ID = "--conn-id ..."
_WITHOUT_FEEDS = ("output clean", "output publish", "sql", "verify")


class Severity(str, Enum):
    """How bad a fault is: an error blocks or endangers something now, a warning later, a note never."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


_ERROR, _WARNING, _NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


class FaultKind(Enum):
    """Kinds of faults; see docs/reference/faults.md. Codes are for programs and are stable."""

    NOT_CHECKED = ("not-checked", _NOTE)
    # The installation and the objects of a feed.
    NOT_INSTALLED = ("not-installed", _ERROR)
    OBJECT_MISSING = ("object-missing", _ERROR)
    TABLE_MISSING = ("table-missing", _ERROR)
    EVENT_TABLE_MISSING = ("event-table-missing", _ERROR)
    PERMISSION_MISSING = ("permission-missing", _ERROR)
    SCHEMA_OWNER = ("schema-owner", _WARNING)
    VERSION_DIFFERS = ("version-differs", _WARNING)
    FEED_VERSION_DIFFERS = ("feed-version-differs", _WARNING)
    MODULE_SETTINGS = ("module-settings", _ERROR)
    PAGE_LOCKS = ("page-locks", _ERROR)
    LOCK_ESCALATION = ("lock-escalation", _WARNING)
    OUTBOX_INDEX = ("outbox-index", _ERROR)
    SEQUENCE_CYCLES = ("sequence-cycles", _ERROR)
    SEQUENCE_NOT_CACHED = ("sequence-not-cached", _NOTE)
    DELAYED_DURABILITY = ("delayed-durability", _NOTE)
    NOT_WAL = ("not-wal", _WARNING)
    NOT_WRITABLE = ("not-writable", _ERROR)
    # Shards, outbox and transactions.
    HIGH_WATER_AHEAD = ("high-water-ahead", _ERROR)
    OUTBOX_NOT_DRAINED = ("outbox-not-drained", _WARNING)
    OUTBOX_HANGS = ("outbox-hangs", _ERROR)
    OUTBOX_KEEPS_DELETED = ("outbox-keeps-deleted", _WARNING)
    OPEN_TRANSACTION = ("open-transaction", _WARNING)
    # Captures.
    CAPTURE_GAP = ("capture-gap", _ERROR)
    CAPTURE_TRIGGER = ("capture-trigger", _ERROR)
    CAPTURE_NESTED_TRIGGERS = ("capture-nested-triggers", _ERROR)
    CAPTURE_GUARD = ("capture-guard", _WARNING)
    CAPTURE_DRIFT = ("capture-drift", _WARNING)
    SNAPSHOT_OPEN = ("snapshot-open", _NOTE)
    SNAPSHOT_EXPIRED = ("snapshot-expired", _WARNING)
    SNAPSHOT_LOST = ("snapshot-lost", _WARNING)
    # Consumers, their cursors and Variables.
    CONSUMER_UNKNOWN = ("consumer-unknown", _ERROR)
    CONSUMER_IDLE = ("consumer-idle", _WARNING)
    EVENTS_BEFORE_BEGINNING = ("events-before-beginning", _WARNING)
    DEAD_LETTER = ("dead-letter", _WARNING)
    CURSOR_IN_WINDOW = ("cursor-in-window", _WARNING)
    CURSOR_BEYOND_FEED = ("cursor-beyond-feed", _ERROR)
    CONSUMER_LOST = ("consumer-lost", _ERROR)
    CONSUMER_FAILING = ("consumer-failing", _WARNING)
    LEASE_EXPIRED = ("lease-expired", _NOTE)
    LEASE_STUCK = ("lease-stuck", _WARNING)
    LEASE_HELD = ("lease-held", _NOTE)
    DAG_PAUSED = ("dag-paused", _WARNING)
    RUN_FAILED = ("run-failed", _WARNING)
    NO_RUN = ("no-run", _WARNING)
    CATCHING_UP = ("catching-up", _NOTE)
    VARIABLE_EDITED = ("variable-edited", _ERROR)
    VARIABLE_UNREADABLE = ("variable-unreadable", _ERROR)
    VARIABLE_ORPHANED = ("variable-orphaned", _ERROR)
    VARIABLE_OF_NO_FEED = ("variable-of-no-feed", _NOTE)
    VARIABLE_MISSING = ("variable-missing", _NOTE)
    VARIABLE_BEHIND = ("variable-behind", _NOTE)
    # Outputs.
    WINDOW_MISSING = ("window-missing", _WARNING)
    WINDOW_LOST = ("window-lost", _NOTE)
    WINDOW_STALE = ("window-stale", _WARNING)
    OUTPUT_BEGINS_LATER = ("output-begins-later", _WARNING)
    EXPORT_MISSING = ("export-missing", _ERROR)
    SEAL_LOST = ("seal-lost", _ERROR)
    UPLOAD_LEFT = ("upload-left", _WARNING)
    CLAIM_MISSING = ("claim-missing", _ERROR)
    CLAIM_DAMAGED = ("claim-damaged", _ERROR)
    CLAIM_FOREIGN = ("claim-foreign", _ERROR)
    CLAIM_NEWER = ("claim-newer", _ERROR)
    MANIFEST_MISSING = ("manifest-missing", _ERROR)
    MANIFEST_TRUNCATED = ("manifest-truncated", _ERROR)
    MANIFEST_DAMAGED = ("manifest-damaged", _ERROR)
    MANIFEST_FOREIGN = ("manifest-foreign", _ERROR)
    MANIFEST_NEWER = ("manifest-newer", _ERROR)
    FILE_MISSING = ("file-missing", _ERROR)
    FILE_TRUNCATED = ("file-truncated", _ERROR)
    FILE_UNREADABLE = ("file-unreadable", _ERROR)
    FILE_CHANGED = ("file-changed", _ERROR)
    FILE_FOREIGN = ("file-foreign", _ERROR)
    SYMBOLIC_LINK = ("symbolic-link", _ERROR)
    FILE_UNREFERENCED = ("file-unreferenced", _NOTE)
    UNIT_NOT_PLACED = ("unit-not-placed", _ERROR)
    UNITS_OVERLAP = ("units-overlap", _ERROR)
    LAKE_TABLE_DIFFERS = ("lake-table-differs", _ERROR)
    LEFTOVER = ("leftover", _NOTE)
    # The machine that runs doctor.
    JAVA_MISSING = ("java-missing", _NOTE)
    SPARK_VERSIONS_DIFFER = ("spark-versions-differ", _ERROR)

    def __init__(self, code: str, severity: Severity) -> None:
        self.code = code
        self.severity = severity


@dataclass(frozen=True)
class Fault:
    """
    One fault, or one check that failed.

    :param place: the affected object, feed, shard, consumer, Variable, unit or file.
    :param what: one sentence with the facts.
    :param unit: of an export, if it affects one. For a missing window, the unit that would fill the gap.
    :param path: of the file on the store's file system; None for a whole unit.
    """

    kind: FaultKind
    place: str
    what: str
    remedy: str
    unit: ExportUnit | None = None
    path: str | None = None

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return self.kind.severity

    def __str__(self) -> str:
        return visible(f"{self.severity.value} {self.kind.code}: {self.place}: {self.what}. {self.remedy}")

    def to_dict(self) -> dict[str, str | None]:
        """Return the fault as JSON values."""
        unit = self.unit
        return {
            "severity": self.severity.value,
            "code": self.kind.code,
            "place": self.place,
            "what": self.what,
            "remedy": self.remedy,
            "shard": shard_text(unit.shard) if unit else None,
            "unit": unit.name if unit else None,
            "path": self.path,
        }


@dataclass(frozen=True)
class Limits:
    """
    Limits beyond which something is a fault.

    :param high_water_ahead: how far a shard's high-water time may be ahead of the database's clock.
    :param outbox_age: age of the first committed row in the outbox, by its ``time_hint``.
    :param open_transaction: age of a writing transaction.
    :param idle_consumer: time since the last move of a consumer that holds back purges, or a lease.
    :param role: role that the connection should have, one of ``ROLES``.
    :raises InvalidArgumentError: a time that is not positive, or an unknown role.
    """

    high_water_ahead: timedelta = timedelta(minutes=10)
    outbox_age: timedelta = timedelta(hours=6)
    open_transaction: timedelta = timedelta(hours=1)
    idle_consumer: timedelta = timedelta(days=7)
    role: str = "operators"

    def __post_init__(self) -> None:
        readers = {each.name: one_of(ROLES) if each.name == "role" else duration() for each in fields(self)}
        InvalidArgumentError.collect("limits", read_values(self, readers))


@dataclass(frozen=True)
class Examination:
    """
    The result of all checks.

    :param faults: errors first.
    :param facts: about the server and the installation, for people.
    :param checked: what was checked, for people.
    :param left_out: what was not checked, and what would check it.
    :param closed_feeds: feeds that the login may not read, although it reads others.
    """

    faults: tuple[Fault, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    checked: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    closed_feeds: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        faults: Sequence[Fault],
        facts: Mapping[str, str],
        checked: Sequence[str] = (),
        left_out: Sequence[str] = (),
    ) -> Examination:
        """Return the faults by severity; failed checks with the same cause are merged."""
        hidden: dict[tuple[str, str], list[str]] = {}
        for fault in faults:
            if fault.kind is FaultKind.NOT_CHECKED:
                hidden.setdefault((fault.what, fault.remedy), []).append(fault.place)
        merged = [fault for fault in faults if fault.kind is not FaultKind.NOT_CHECKED]
        merged += [not_checked("; ".join(checks), *cause) for cause, checks in hidden.items()]
        order = list(Severity)
        ordered = tuple(sorted(merged, key=lambda fault: order.index(fault.severity)))
        return cls(ordered, dict(facts), tuple(checked), tuple(left_out))

    @property
    def is_clean(self) -> bool:
        """Whether there are only notes."""
        return all(fault.severity is Severity.NOTE for fault in self.faults)

    @property
    def summary(self) -> str:
        """One line for people."""
        counts = ", ".join(
            f"{severity.value}s: {sum(fault.severity is severity for fault in self.faults)}"
            for severity in Severity
        )
        return f"{counts}{''.join(f'; {name}: {value}' for name, value in self.facts.items())}"


def not_checked(place: str, what: str, remedy: str) -> Fault:
    """Return the fault for a check that failed; a sentence of a server's or driver's may end with a stop."""
    return Fault(FaultKind.NOT_CHECKED, place, re.sub(r"(?<!\.)\.$", "", what), remedy)


def shell(command: str, *words: str) -> str:
    """
    Return a command, ready to paste; with ``CONN_ID`` if it needs the connection of the feeds.

    :param command: with its group's name before, for example ``cursor adopt``.
    :param words: arguments; they are quoted if needed. ``...`` is for the person to fill in.
    """
    text = " ".join(["airflow-changefeed", command, *map(shlex.quote, words)])
    return text if command in _WITHOUT_FEEDS else f"{text} {CONN_ID}"


def with_conn_id(text: str, conn_id: str | None) -> str:
    """Insert the connection into the commands of a text; None leaves them as they are."""
    return text if conn_id is None else text.replace(CONN_ID, f"--conn-id {shlex.quote(conn_id)}")


def park_command(consumer: str, feed: str) -> str:
    """Return the command that sets the next event of a consumer aside if its handler fails, and ends."""
    one = ("--on-poison", "park", "--max-events", "1", "--at-head")
    return shell("consume", consumer, "--feed", feed, "--handler", "...", *one)


def gap_remedy(capture: str) -> str:
    """Return what to do about a gap, or about a trigger that is gone, on every source."""
    return (
        f"Recreate triggers that are gone: {shell('capture refresh', capture)}. Find out what is missing, "
        f"then resolve the gap: {shell('capture resolve', capture, '--note', '...')}. To fold later times, "
        "take a snapshot afterwards, or add --resync, which records the current rows as events"
    )
