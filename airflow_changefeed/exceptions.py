# SPDX-License-Identifier: Apache-2.0
"""
Every error of airflow_changefeed, in one tree.

``TerminalError``: a person must act, a retry repeats the failure. ``TransientError``: a retry may help::

    ChangefeedError
    ├── TerminalError
    │   ├── InvalidArgumentError      one or more parameters are wrong (also a ValueError)
    │   │   ├── InvalidUlidError      not a ULID, or one beyond 128 bits
    │   │   └── InvalidWindowError    zero length, reversed, not aligned, without time zone
    │   ├── FeedNotFoundError         the database has no such feed
    │   ├── ShardNotFoundError        the feed has no such shard
    │   ├── ConnectionNotUsableError  no such connection, or of a type without feeds
    │   ├── PermissionDeniedError     the login may not do this
    │   ├── FeedSetupError            a table cannot become a feed, or is one of another kind
    │   ├── CaptureNotFoundError      the database has no such capture
    │   ├── CaptureGapError           a capture has missed changes, and the gap is not resolved
    │   ├── ConsumerNotFoundError     the feed has no such consumer
    │   ├── ConsumerSetupError        a consumer that exists with other settings
    │   ├── ConsumerUseError          methods of a consumer were called in an invalid order
    │   ├── HandlerError              a handler that cannot be found, called or sent to the process
    │   ├── PoisonError               an event that failed too often
    │   ├── WorkTransactionError      work that ended the transaction it was given
    │   ├── DeadLetterError           a dead letter that does not exist or is no longer open
    │   ├── FoldError                 events from which a table cannot be folded
    │   ├── SnapshotError             a snapshot that is refused, or was given up
    │   ├── ReconcileError            an export and the table that differ, or cannot be compared
    │   ├── FreshnessError            a consumer that is not complete until as late a time as asked
    │   ├── FutureTimeError           a seal or window that ends in the future
    │   ├── HistoryError              history that cannot be inserted at that time
    │   ├── PurgedError               events below this bound are purged
    │   ├── SealLostError             the database lost a seal that exports relied on: it was restored
    │   ├── MissingEventError         the row of an ordered event was deleted
    │   ├── ColumnTypeError           a value that cannot be exported unchanged
    │   ├── UnsupportedVersionError   JSON, or a database's objects, of a newer version
    │   ├── CursorError
    │   │   ├── CursorFormatError     a Variable that is not a cursor
    │   │   ├── CursorEditedError     a Variable that differs from the database's row
    │   │   ├── CursorBeyondFeedError a cursor ahead of the shard's high-water time
    │   │   └── StaleVersionError     the given resource version is not the current one
    │   ├── OutputError
    │   │   ├── OutputNotWritableError
    │   │   ├── ForeignOutputError    the path holds another feed's export
    │   │   ├── ManifestError         a manifest or file that is damaged or missing
    │   │   ├── SymbolicLinkError     a link in an output, which nothing follows
    │   │   ├── TableError            a Delta or Iceberg table that cannot be read or written
    │   │   └── SpecNotFoundError     what a job was to do has been removed
    │   └── SparkEnvironmentError     Java, spark-submit or the Spark connection is not usable
    └── TransientError
        ├── LockTimeoutError          somebody holds the lock longer than ``lock_timeout``
        │   └── DeadlockError         the server chose this transaction as a deadlock victim
        ├── SourceUnavailableError    the database did not answer, or the connection broke
        │   ├── AirflowUnavailableError   Airflow's API or metadata database did not answer
        │   └── ReplicaBehindError    a readable secondary has not seen the seal yet
        ├── NotYetError               a time less than a minute ahead of the database's clock
        ├── NotSealedError            a range beyond the seal
        ├── NotExportedError          not all units until a time are complete
        ├── LeaseHeldError            another process holds the shard's lease
        ├── LeaseLostError            the fencing token is no longer the newest
        ├── StoppedError              the process was asked to stop before all was consumed
        ├── SupersededError           a newer attempt at the same export unit counts
        ├── TableConflictError        somebody committed to a Delta or Iceberg table meanwhile
        ├── SchemaChangedError        the table's columns changed while it was read
        └── IncompleteReadError       a range has a different number of rows than planned

The split into terminal and transient follows dlt's ``common/exceptions.py``.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

# Spark adds its own state to what a query raises.
_NAMED = re.compile(rf"{re.escape(__name__)}\.(\w+): (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)

# What every version of Spark says of a file that is gone since its path was found.
_REPLACED = "It is possible the underlying files have been updated"
# Controls, also of the direction of text; halves of surrogate pairs; separators of lines and paragraphs.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class ChangefeedError(Exception):
    """
    Base of all errors of this package.

    :param message: what happened, to which feed, shard or cursor, and what to do. Invisible characters, for
        example of a file's name, become escapes (:func:`visible`).
    :param facts: the same facts as values; each becomes an attribute of the error.
    """

    transient: bool = False

    def __init__(self, message: str, **facts: Any) -> None:
        message = visible(message, are_lines=True)
        super().__init__(message)
        self.message = message
        self.facts = facts
        self.__dict__.update(facts)

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle by their positional arguments; Spark and Airflow pickle ours across processes.
        return _rebuild, (type(self), self.message, self.facts)


def _rebuild(cls: type[ChangefeedError], message: str, facts: dict[str, Any]) -> ChangefeedError:
    return cls(message, **facts)


class TerminalError(ChangefeedError):
    """A person must act: a retry would fail the same way."""


class TransientError(ChangefeedError):
    """A retry may help."""

    transient = True


class InvalidArgumentError(TerminalError, ValueError):
    """One or more parameters are wrong; the message lists all of them."""

    @classmethod
    def collect(cls, subject: str, problems: list[str]) -> None:
        """
        Raise one error with all problems, or return if there are none.

        :param subject: what the parameters belong to, for example ``"ChangefeedSensor 'wait'"``.
        :param problems: one sentence for each wrong parameter, with the remedy.
        """
        if problems:
            raise cls(f"{subject}: {'; '.join(problems)}", problems=list(problems))


class InvalidUlidError(InvalidArgumentError):
    """A text, bytes or number that is not a ULID."""


class InvalidWindowError(InvalidArgumentError):
    """A window of zero or negative length, not aligned, or without time zone."""


class FeedNotFoundError(TerminalError):
    """The database has no such feed."""


class ShardNotFoundError(TerminalError):
    """The feed has no such shard."""


class ConnectionNotUsableError(TerminalError):
    """The Airflow connection does not exist, or its type has no feeds."""


class PermissionDeniedError(TerminalError):
    """The database user does not have permission to do this, or to change another consumer's cursors."""


class FeedSetupError(TerminalError):
    """A table cannot become a feed, or is already a feed of another kind."""


class CaptureNotFoundError(TerminalError):
    """The database has no capture of that name."""


class CaptureGapError(TerminalError):
    """A capture has missed changes, or may have; a person must resolve the gap."""


class ConsumerNotFoundError(TerminalError):
    """The feed has no consumer of that name."""


class ConsumerSetupError(TerminalError):
    """The consumer exists with other settings, or belongs to an export."""


class ConsumerUseError(TerminalError):
    """A consumer's methods were called in an invalid order, for example consume before get."""


class HandlerError(TerminalError):
    """A handler cannot be imported or called, or this source cannot run handlers of its kind."""


class PoisonError(TerminalError):
    """An event failed as often as the consumer allows, and the consumer stops at it."""


class WorkTransactionError(TerminalError):
    """Work ended its transaction, or suppressed an error that did; nothing was consumed."""


class DeadLetterError(TerminalError):
    """The dead letter does not exist or is no longer open."""


class FoldError(TerminalError):
    """A table's state cannot be folded from these events."""


class SnapshotError(TerminalError):
    """A snapshot of a table is refused, or was given up."""


class ReconcileError(TerminalError):
    """A table and what its export gives differ, or cannot be compared."""


class FreshnessError(TerminalError):
    """A consumer's frontier is older than asked; has the rows of all consumers."""


class FutureTimeError(TerminalError):
    """A seal or window ends in the future, by the database's clock."""


class HistoryError(TerminalError):
    """History cannot be inserted there: too close to the head, purged, or not allowed in this feed."""


class PurgedError(TerminalError):
    """The requested range begins in the purged part of the feed."""


class SealLostError(TerminalError):
    """The feed is no longer sealed up to the end of its exports, because its database was restored."""


class MissingEventError(TerminalError):
    """A row of the event table was deleted after its event was ordered."""


class ColumnTypeError(TerminalError):
    """A column has a value that cannot be exported unchanged."""


class UnsupportedVersionError(TerminalError):
    """JSON written, or a database's objects installed, by a newer version of this package."""


class CursorError(TerminalError):
    """Base of all errors of cursors."""


class CursorFormatError(CursorError):
    """An Airflow Variable that should contain cursors contains something else."""


class CursorEditedError(CursorError):
    """An Airflow Variable differs from the row in the feed's database: somebody edited one of them."""


class CursorBeyondFeedError(CursorError):
    """A cursor is beyond its shard's high-water time: a restored database, or a cursor of another feed."""


class StaleVersionError(CursorError):
    """The given resource version is not the current one; nothing was changed."""


class OutputError(TerminalError):
    """Base of all errors of outputs."""


class OutputNotWritableError(OutputError):
    """The output path cannot be written."""


class ForeignOutputError(OutputError):
    """The output path contains the export of another feed."""


class ManifestError(OutputError):
    """A manifest, or one of its files, is damaged or missing."""


class SymbolicLinkError(OutputError):
    """A file or folder of an output is a symbolic link, or lies behind one."""


class TableError(OutputError):
    """A table of Delta Lake or Iceberg cannot be read or written, or is not this export's."""


class SpecNotFoundError(OutputError):
    """What a job was to do has been removed."""


class SparkEnvironmentError(TerminalError):
    """Java, spark-submit or the Spark connection is missing, too old, or would use another master."""


class LockTimeoutError(TransientError):
    """Another session held a lock for longer than ``lock_timeout`` seconds."""


class DeadlockError(LockTimeoutError):
    """The server chose this transaction as a deadlock victim and rolled it back."""


class SourceUnavailableError(TransientError):
    """The database did not answer, or the connection broke."""


class AirflowUnavailableError(SourceUnavailableError):
    """
    Airflow's API, or outside a task its metadata database, did not answer.

    :ivar what: one sentence, which the message has with the remedy.
    :ivar remedy: what to do.
    """

    what: str
    remedy: str

    @classmethod
    def of(cls, what: str, remedy: str) -> AirflowUnavailableError:
        """Make one whose message has both."""
        return cls(f"{what}. {remedy}", what=what, remedy=remedy)


class NotYetError(TransientError):
    """A seal or window ends less than a minute ahead of the database's clock."""


class NotSealedError(TransientError):
    """A range extends beyond the seal of its feed, so events may still be added to it."""


class NotExportedError(TransientError):
    """Not all units until a time are complete yet; has the missing ones."""


class LeaseHeldError(TransientError):
    """Another process holds the lease of a shard."""


class LeaseLostError(TransientError):
    """The lease expired or was revoked and is now held by another process; nothing was written."""


class StoppedError(TransientError):
    """The process was asked to stop, for example by a signal, before its work was done."""


class SupersededError(TransientError):
    """A newer attempt at the same export unit exists and counts; this one withdrew."""


class TableConflictError(TransientError):
    """Somebody committed to a table since it was looked at, or may have: look again."""


class SchemaChangedError(TransientError):
    """The columns of the event table changed while it was read; a retry reads it with the new columns."""


class ReplicaBehindError(SourceUnavailableError):
    """A readable secondary has not yet received the seal of the primary."""


class IncompleteReadError(TransientError):
    """A sealed range has a different number of rows than the plan counted."""


def changefeed_error(error: BaseException | str) -> ChangefeedError | None:
    """
    Find our error in what another process handed on: an exception of Spark, or a text.

    :return: the same class with the same message, without its facts; None if the error is not ours.
    """
    if isinstance(error, ChangefeedError):
        return error
    text = error if isinstance(error, str) else described(error)
    for name, message in reversed(_NAMED.findall(text)):
        kind = globals().get(name)
        if isinstance(kind, type) and issubclass(kind, ChangefeedError):
            return kind(message.strip())
    return None


def own_error(error: BaseException | str) -> ChangefeedError:
    """Return our error in what another process handed on; any other (a bug, memory) counts as transient."""
    text = error if isinstance(error, str) else described(error)
    if _REPLACED in text:
        text = (
            "a file was replaced while Spark read it: its unit was exported again, or the output was "
            f"cleaned up. Retry: a retry reads the present files. Spark said: {text}"
        )
    return changefeed_error(error) or TransientError(text)


def described(error: BaseException, longest: int | None = None) -> str:
    """
    Return an error's class and message as text that can be stored, even if its ``__str__`` fails.

    :param longest: as for :func:`storable`.
    """
    try:
        message = str(error) or repr(error)
    except Exception as problem:
        message = f"its message cannot be shown: __str__ or __repr__ raised {type(problem).__name__}"
    return storable(f"{type(error).__name__}: {message}", longest)


def visible(text: str, *, are_lines: bool = False) -> str:
    """
    Return a text without invisible characters, as a terminal or log may show it.

    Others name files and feeds. A control character could lead a terminal, and one of the direction of text
    could show another name. They become escapes as in JSON, so that a JSON text keeps its meaning.

    :param are_lines: whether ends of lines and tabs are the text's own, and stay.
    """
    if text.isprintable():
        return text
    kept = "\n\t" if are_lines else ""
    return "".join(
        json.dumps(char)[1:-1] if char not in kept and unicodedata.category(char) in _INVISIBLE else char
        for char in text
    )


def storable(text: str, longest: int | None = None) -> str:
    """
    Return a text as every database and document can store it.

    Half a surrogate pair, as in a file's name that is not UTF-8, and NUL become escapes.

    :param longest: UTF-16 code units, which SQL Server counts; the rest is cut, and no character is halved.
    """
    text = text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")
    return text if longest is None else text.encode("utf-16-le")[: 2 * longest].decode("utf-16-le", "ignore")


def error_text(error: BaseException) -> str:
    """Return a line from which :func:`changefeed_error` makes the error again, as a traceback ends."""
    found = own_error(error)
    return storable(f"{__name__}.{type(found).__name__}: {' '.join(found.message.splitlines())}")
