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
    │   ├── ConnectionNotUsableError  no such connection, or of a type that holds no feeds
    │   ├── PermissionDeniedError     the login may not do this
    │   ├── FeedSetupError            a table cannot become a feed, or is one of another kind
    │   ├── CaptureNotFoundError      the database has no such capture
    │   ├── CaptureGapError           changes passed a capture unseen, and nobody resolved it yet
    │   ├── ConsumerNotFoundError     the feed has no such consumer
    │   ├── ConsumerSetupError        a consumer that exists with other settings
    │   ├── ConsumerUseError          calls of a consumer in an order that means nothing
    │   ├── HandlerError              a handler that cannot be found, called or taken along
    │   ├── PoisonError               an event that failed too often
    │   ├── WorkTransactionError      work that ended the transaction it was given
    │   ├── DeadLetterError           a dead letter that is not there, or no longer open
    │   ├── FoldError                 events from which a table's state cannot be told
    │   ├── FutureTimeError           a seal or window that ends in the future
    │   ├── HistoryError              history that cannot be inserted where it was asked
    │   ├── PurgedError               events below this bound are gone
    │   ├── SealLostError             the database forgot a seal that was exported by: it was restored
    │   ├── MissingEventError         an event's row was deleted after it was fed
    │   ├── ColumnTypeError           a value that cannot be exported unchanged
    │   ├── UnsupportedVersionError   JSON, or a database's objects, of a newer version
    │   ├── CursorError
    │   │   ├── CursorFormatError     a Variable that is not a cursor
    │   │   ├── CursorEditedError     a Variable that differs from the database's row
    │   │   ├── CursorBeyondFeedError a cursor ahead of the shard's high-water time
    │   │   └── StaleVersionError     the resource version named is not the present one
    │   ├── OutputError
    │   │   ├── OutputNotWritableError
    │   │   ├── ForeignOutputError    the path holds another feed's export
    │   │   └── ManifestError         a manifest or file that is damaged or missing
    │   └── SparkEnvironmentError     Java, spark-submit or the Spark connection is not usable
    └── TransientError
        ├── LockTimeoutError          somebody holds the lock longer than ``lock_timeout``
        │   └── DeadlockError         the server gave this transaction up so that another could go on
        ├── SourceUnavailableError    the database did not answer, or the connection broke
        │   └── ReplicaBehindError    a readable secondary has not seen the seal yet
        ├── NotYetError               refused by less than a minute of the database's clock
        ├── NotSealedError            a range that reaches beyond what is sealed
        ├── NotExportedError          a time until which not all units are complete
        ├── LeaseHeldError            another process holds the shard's lease
        ├── LeaseLostError            the fencing token is no longer the newest
        ├── StoppedError              asked to stop before all was consumed
        ├── SupersededError           a newer attempt at the same export unit counts
        ├── SchemaChangedError        the table's columns changed while it was read
        └── IncompleteReadError       a range gave another number of rows than was planned

The split into terminal and transient follows dlt's ``common/exceptions.py``.
"""

from __future__ import annotations

from typing import Any


class ChangefeedError(Exception):
    """
    Base of all errors of this package.

    :param message: what happened, to which feed, shard or cursor, and what to do about it.
    :param facts: the same facts as values; each becomes an attribute of the error.
    """

    transient: bool = False

    def __init__(self, message: str, **facts: Any) -> None:
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
        Raise one error for all problems, or return when there is none.

        :param subject: what the parameters belong to, for example ``"ChangefeedSensor 'wait'"``.
        :param problems: one sentence for each wrong parameter, with the remedy.
        """
        if problems:
            raise cls(f"{subject}: {'; '.join(problems)}", problems=list(problems))


class InvalidUlidError(InvalidArgumentError):
    """Not a ULID in text or bytes, or one outside of 128 bits."""


class InvalidWindowError(InvalidArgumentError):
    """A window of zero or negative length, not aligned, or without time zone."""


class FeedNotFoundError(TerminalError):
    """The database holds no such feed."""


class ShardNotFoundError(TerminalError):
    """The feed has no such shard."""


class ConnectionNotUsableError(TerminalError):
    """No such Airflow connection, or one of a type that holds no feeds."""


class PermissionDeniedError(TerminalError):
    """The database's user has not the right to do this, or to touch another consumer's cursors."""


class FeedSetupError(TerminalError):
    """A table cannot become a feed, or already is one of another kind."""


class CaptureNotFoundError(TerminalError):
    """The database has no capture of that name."""


class CaptureGapError(TerminalError):
    """Changes of a captured table passed unseen, or may have; a person must resolve it."""


class ConsumerNotFoundError(TerminalError):
    """The feed has no consumer of that name."""


class ConsumerSetupError(TerminalError):
    """A consumer exists with other settings, or as that of an export."""


class ConsumerUseError(TerminalError):
    """A consumer was used in an order that means nothing: consume before get, next outside a transaction."""


class HandlerError(TerminalError):
    """A handler cannot be imported or called, or this source cannot run handlers of its kind."""


class PoisonError(TerminalError):
    """An event failed as often as the consumer allows, and it stops at it."""


class WorkTransactionError(TerminalError):
    """Work ended the transaction that it was given, or swallowed an error that did; nothing was consumed."""


class DeadLetterError(TerminalError):
    """There is no such dead letter, or it is not open any more."""


class FoldError(TerminalError):
    """A table's state cannot be told from these events."""


class FutureTimeError(TerminalError):
    """A seal or a window ends in the future of the database's clock."""


class HistoryError(TerminalError):
    """History cannot be inserted there: too near the head, already purged, or a feed that takes none."""


class PurgedError(TerminalError):
    """Events below a bound are purged, and the range asked for reaches below it."""


class SealLostError(TerminalError):
    """The feed is not sealed any more until where it was exported: its database was restored."""


class MissingEventError(TerminalError):
    """A row of the event table was deleted after it was fed."""


class ColumnTypeError(TerminalError):
    """A column holds what cannot be exported unchanged."""


class UnsupportedVersionError(TerminalError):
    """JSON written, or a database's objects installed, by a newer version of this package."""


class CursorError(TerminalError):
    """Base of what can be wrong with a cursor."""


class CursorFormatError(CursorError):
    """An Airflow Variable that should hold a cursor holds something else."""


class CursorEditedError(CursorError):
    """An Airflow Variable differs from the row in the feed's database: somebody edited one of them."""


class CursorBeyondFeedError(CursorError):
    """A cursor is beyond its shard's high-water time: a restored database, or a cursor of another feed."""


class StaleVersionError(CursorError):
    """The resource version named is not the present one; nothing was changed."""


class OutputError(TerminalError):
    """Base of what can be wrong with the place that is exported to."""


class OutputNotWritableError(OutputError):
    """The output path cannot be written."""


class ForeignOutputError(OutputError):
    """The output path holds the export of another feed."""


class ManifestError(OutputError):
    """A manifest, or a file that it names, is damaged or missing."""


class SparkEnvironmentError(TerminalError):
    """Java, spark-submit or the Spark connection is missing, too old, or silently means another master."""


class LockTimeoutError(TransientError):
    """Somebody held a lock longer than ``lock_timeout`` seconds."""


class DeadlockError(LockTimeoutError):
    """The server chose this transaction as the victim of a deadlock; nothing of it was done."""


class SourceUnavailableError(TransientError):
    """The database did not answer, or the connection broke."""


class NotYetError(TransientError):
    """A seal or window ends less than a minute ahead of the database's clock."""


class NotSealedError(TransientError):
    """A range reaches beyond what its feed is sealed until, so events may still come into it."""


class NotExportedError(TransientError):
    """A time until which not all units are complete yet; carries what is missing."""


class LeaseHeldError(TransientError):
    """Another process holds the lease of a shard."""


class LeaseLostError(TransientError):
    """The lease ran out and was granted to somebody else; nothing was written."""


class StoppedError(TransientError):
    """A process was asked to stop, by a signal for example, before all was consumed that it was to."""


class SupersededError(TransientError):
    """A newer attempt at the same export unit exists and counts; this one withdrew."""


class SchemaChangedError(TransientError):
    """The columns of the event table changed while it was read; a retry reads all of it as it is now."""


class ReplicaBehindError(SourceUnavailableError):
    """A readable secondary has not seen yet what is sealed at the primary."""


class IncompleteReadError(TransientError):
    """A sealed range gave another number of rows than the plan counted."""


def named_error(name: str, message: str) -> ChangefeedError | None:
    """
    Return an error that another process raised, by the name of its class; without its facts.

    :return: None where this package has no such error.
    """
    kind = globals().get(name)
    return kind(message) if isinstance(kind, type) and issubclass(kind, ChangefeedError) else None
