# SPDX-License-Identifier: Apache-2.0
"""
Translation of errors of SQL Server and its driver.

The driver reports neither the number nor the SQLSTATE of an error. So every error that our T-SQL throws
begins with ``changefeed <number>:``, and the server's own errors are recognised by their English text: each
of our connections sets its language to English.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.exceptions import (
    CaptureGapError,
    CaptureNotFoundError,
    ChangefeedError,
    ConsumerNotFoundError,
    ConsumerSetupError,
    CursorBeyondFeedError,
    DeadLetterError,
    FeedNotFoundError,
    FeedSetupError,
    FutureTimeError,
    HistoryError,
    InvalidArgumentError,
    LeaseHeldError,
    LeaseLostError,
    LockTimeoutError,
    NotYetError,
    PermissionDeniedError,
    PurgedError,
    ShardNotFoundError,
    SnapshotError,
    StaleVersionError,
    TerminalError,
    WorkTransactionError,
)
from airflow_changefeed.sources.mssql.connection.native_errors import NATIVE
from airflow_changefeed.sources.mssql.install.rights import remedy

#: Number of an error that our T-SQL throws, and its class. 55000, 71000 and 77100 are mssql-changefeed's own.
THROWN: Mapping[int, type[ChangefeedError]] = {
    55000: InvalidArgumentError,
    71000: FeedSetupError,
    77100: InvalidArgumentError,
    77101: LockTimeoutError,
    77102: NotYetError,
    77103: FutureTimeError,
    77104: PurgedError,
    77105: CursorBeyondFeedError,
    77106: FeedNotFoundError,
    77107: InvalidArgumentError,
    77108: InvalidArgumentError,
    77109: PermissionDeniedError,
    77110: FeedSetupError,
    77111: FeedSetupError,
    77112: FeedSetupError,
    77113: FeedSetupError,
    77114: FeedSetupError,
    77115: FeedSetupError,
    77116: InvalidArgumentError,
    77117: FeedSetupError,
    77118: FeedSetupError,
    77119: FeedSetupError,
    77120: HistoryError,
    # Failed conversions in a view, which cannot throw.
    77122: FeedSetupError,
    77131: ShardNotFoundError,
    77132: StaleVersionError,
    77133: LeaseLostError,
    77134: LeaseHeldError,
    77135: PermissionDeniedError,
    77140: FeedSetupError,
    77141: CaptureNotFoundError,
    77142: CaptureGapError,
    77143: FeedSetupError,
    77144: FeedSetupError,
    77145: FeedSetupError,
    77150: WorkTransactionError,
    77151: ConsumerNotFoundError,
    77152: ConsumerSetupError,
    77153: ConsumerSetupError,
    77154: DeadLetterError,
    77155: StaleVersionError,
    77156: SnapshotError,
    77158: SnapshotError,
    77159: TerminalError,
    77157: PermissionDeniedError,
}
_THROWN = re.compile(r"changefeed (\d{5,6}): (.*)", re.DOTALL)
#: How our T-SQL reports the current version, the current value, and the expected version.
_STALE = re.compile(r"is at resource version (\d+) \((.*)\), not (-?\d+): nothing was changed", re.DOTALL)


def thrown(error: BaseException) -> tuple[int, str] | None:
    """Return number and message of an error thrown by our T-SQL; None for others."""
    found = _THROWN.search(_text(error))
    return (int(found[1]), found[2].strip()) if found else None


def name_error(error: BaseException, *, secret: str = "", **facts: Any) -> BaseException:
    """
    Return our error for a driver error, with facts; others unchanged.

    :param secret: removed from the message, whatever the driver says.
    :param facts: of the call; ``feed`` and ``shard`` also appear in the message.
    """
    if isinstance(error, ChangefeedError) or not is_driver_error(error):
        return error
    return name_text(_text(error), secret=secret, **facts) or error


@contextmanager
def naming_errors(**facts: Any) -> Iterator[None]:
    """Raise our error for a driver error of a block, with facts, as :func:`name_error`."""
    try:
        yield
    except Exception as error:
        named = name_error(error, **facts)
        if named is error:
            raise
        raise named from error


def name_text(text: str, *, secret: str = "", **facts: Any) -> ChangefeedError | None:
    """
    Return our error for a server message, as :func:`name_error`; None if unknown.

    :param text: of the server, or of the driver.
    """
    if found := _THROWN.search(text):
        kind = THROWN.get(int(found[1]), TerminalError)
        if stale := _STALE.search(found[2]):
            present, expected = int(stale[1]), int(stale[3])
            facts |= {"expected_version": expected, "present_version": present, "present": stale[2]}
        return kind(found[2].strip(), number=int(found[1]), **facts)
    for native in NATIVE:
        if re.search(native.pattern, text.lower(), re.DOTALL):
            advice = native.advice or remedy(text)
            return native.error(f"{_subject(facts)}{hidden(_plain(text), secret)}: {advice}", **facts)
    return None


def hidden(text: str, secret: str) -> str:
    """Return a text without a secret, including its forms in a connection string or Python repr."""
    for written in {secret, secret.replace("}", "}}"), repr(secret)[1:-1]} - {""}:
        text = text.replace(written, "***")
    return text


def is_driver_error(error: BaseException) -> bool:
    """Whether the driver raised it; checked without importing the driver."""
    return type(error).__module__.partition(".")[0] in ("mssql_python", "ddbc_bindings") and isinstance(
        error, Exception
    )


def _text(error: BaseException) -> str:
    """Return the server's message, preceded by the driver's text for its SQLSTATE."""
    said = getattr(error, "ddbc_error", None)
    return f"{getattr(error, 'driver_error', '')}: {said}" if said is not None else str(error)


def _plain(text: str) -> str:
    return re.sub(r"\[(Microsoft|SQL Server|ODBC[^\]]*)\]", "", text).strip().rstrip(".")


def _subject(facts: Mapping[str, Any]) -> str:
    feed, shard = facts.get("feed"), facts.get("shard")
    if feed is None:
        return f"{facts['server']}: " if "server" in facts else ""
    return f"feed {feed!r}{'' if shard is None else f' shard {shard_text(shard)}'}: "
