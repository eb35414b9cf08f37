# SPDX-License-Identifier: Apache-2.0
"""
Errors of SQL Server and of its driver, under our names.

The driver tells neither the number nor the SQLSTATE of an error. So all that our T-SQL throws begins with
``changefeed <number>:``, and what the server itself raises is known by its English text: every connection of
ours sets its language to English.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConnectionNotUsableError,
    CursorBeyondFeedError,
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
    SourceUnavailableError,
    StaleVersionError,
    TerminalError,
)

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
    77110: FeedSetupError,
    77111: FeedSetupError,
    77112: FeedSetupError,
    77113: FeedSetupError,
    77114: FeedSetupError,
    77115: FeedSetupError,
    77116: InvalidArgumentError,
    77118: FeedSetupError,
    77119: FeedSetupError,
    77120: HistoryError,
    77131: ShardNotFoundError,
    77132: StaleVersionError,
    77133: LeaseLostError,
    77134: LeaseHeldError,
    77135: PermissionDeniedError,
}
#: Of conversions that fail in a view, where nothing can be thrown.
CONVERTED: Mapping[int, type[ChangefeedError]] = {77122: FeedSetupError}
_THROWN = re.compile(r"changefeed (\d+): (.*)", re.DOTALL)


class Native(NamedTuple):
    """
    Errors of the server or driver that mean the same to us.

    :param numbers: SQL Server's, for the reader; the driver does not tell them.
    :param pattern: of the texts, in lower case.
    :param advice: what to do.
    """

    numbers: tuple[int, ...]
    pattern: str
    error: type[ChangefeedError]
    advice: str


#: In the order of looking: a text may fit several.
NATIVE = (
    Native(
        (18452, 18456, 4060),
        r"login failed|cannot open database|database \".*\" does not exist|invalid authorization",
        ConnectionNotUsableError,
        "check login, password and database of the connection",
    ),
    Native(
        (-2146893019,),
        r"certificate verify failed|ssl provider|tls provider|encryption not supported|"
        r"server does not support encryption",
        ConnectionNotUsableError,
        "check encrypt and trust_server_certificate of the connection",
    ),
    Native((1205,), r"deadlock", LockTimeoutError, "retry: it was chosen as the victim of a deadlock"),
    Native(
        (1222,),
        r"lock request time.?out|lock timeout",
        LockTimeoutError,
        "retry, or look for a transaction that was left open",
    ),
    Native(
        (229, 230, 262, 300, 916, 15151, 15247),
        r"permission (was )?denied|do(es)? not have permission|not have the required permission|"
        r"cannot access the database|is not able to access the database|must be owner",
        PermissionDeniedError,
        "ask a DBA to make the login's user a member of the feed's role (changefeed.readers:…, "
        "changefeed.writers:… or changefeed.operators:…)",
    ),
    Native(
        (40197, 40501, 40613, 49918, 10928, 10929, 233, 10053, 10054),
        r"communication link failure|unable to establish connection|connection not open|"
        r"connection failure|connection was lost|connection is broken|timeout expired|"
        r"is not currently available|is currently (too )?busy|"
        r"please try again|not enough resources|limit .* has been reached|server rejected the connection|"
        r"tcp provider|protocol error|shutdown is in progress|terminating connection|"
        r"in recovery mode|is starting up",
        SourceUnavailableError,
        "retry, or look whether the server runs and can be reached",
    ),
    Native(
        (8144, 8145, 8146),
        r"too many arguments|is not a parameter for procedure|no parameters and arguments were supplied",
        FeedSetupError,
        "its objects are of another version than this package: run the install script of this version",
    ),
    Native(
        (208, 2812),
        r"invalid object name|could not find stored procedure|"
        r"(procedure|relation|function) .* does not exist",
        FeedNotFoundError,
        "its objects are not installed, were dropped, or are not visible to this login",
    ),
)


def thrown(error: BaseException) -> tuple[int, str] | None:
    """Return number and message of an error that our T-SQL threw; None for all others."""
    found = _THROWN.search(_text(error))
    return (int(found[1]), found[2].strip()) if found else None


def name_error(error: BaseException, **facts: Any) -> BaseException:
    """
    Return our error for one of the driver, with facts; all others as they are.

    :param facts: what the call was about; ``feed`` and ``shard`` are told in the message, too.
    """
    if isinstance(error, ChangefeedError) or not is_driver_error(error):
        return error
    if found := thrown(error):
        number, message = found
        known = {**THROWN, **CONVERTED}
        return known.get(number, TerminalError)(message, number=number, **facts)
    text = _text(error)
    for native in NATIVE:
        if re.search(native.pattern, text.lower(), re.DOTALL):
            return native.error(f"{_subject(facts)}{_plain(text)}: {native.advice}", **facts)
    return error


def is_driver_error(error: BaseException) -> bool:
    """Whether the driver raised it; asked without importing the driver."""
    return type(error).__module__.partition(".")[0] in ("mssql_python", "ddbc_bindings") and isinstance(
        error, Exception
    )


def _text(error: BaseException) -> str:
    """Return what the server said, after what the driver made of its SQLSTATE."""
    said = getattr(error, "ddbc_error", None)
    return f"{getattr(error, 'driver_error', '')}: {said}" if said is not None else str(error)


def _plain(text: str) -> str:
    return re.sub(r"\[(Microsoft|SQL Server|ODBC[^\]]*)\]", "", text).strip().rstrip(".")


def _subject(facts: Mapping[str, Any]) -> str:
    feed, shard = facts.get("feed"), facts.get("shard")
    if feed is None:
        return f"{facts['server']}: " if "server" in facts else ""
    return f"feed {feed!r}{'' if shard is None else f' shard {shard_text(shard)}'}: "
