# SPDX-License-Identifier: Apache-2.0
"""
Errors of SQL Server and its driver: recognised by number or English text, and translated.

The driver reports neither the number nor the SQLSTATE of an error. So every error that our T-SQL throws
begins with ``changefeed <number>:``, and the server's own errors are recognised by their English text: each
of our connections sets its language to English.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.exceptions import (
    CaptureGapError,
    CaptureNotFoundError,
    ChangefeedError,
    ConnectionNotUsableError,
    ConsumerNotFoundError,
    ConsumerSetupError,
    CursorBeyondFeedError,
    DeadLetterError,
    DeadlockError,
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
    SourceUnavailableError,
    StaleVersionError,
    TerminalError,
    WorkTransactionError,
)
from airflow_changefeed.sources.mssql.rights import remedy


class Native(NamedTuple):
    """
    Errors of the server or driver that are handled alike.

    :param numbers: SQL Server's, as documentation; the driver does not report them.
    :param pattern: of the texts, in lower case.
    :param advice: what to do; empty if it depends on the text.
    """

    numbers: tuple[int, ...]
    pattern: str
    error: type[ChangefeedError]
    advice: str


#: Checked in this order: a text may match several.
NATIVE = (
    Native(
        (18401, 921, 922, 927, 952, 976, 978, 979, 983, 988),
        r"script upgrade mode|is being recovered|has not been recovered yet|in the middle of a restore|"
        r"is in transition|in an availability group and is currently|try the operation again later",
        SourceUnavailableError,
        "retry; if it persists, connect to the availability group's listener, or check whether its "
        "secondary is readable (read_only_replica of the connection)",
    ),
    Native(
        (40615, 40914),
        r"is not allowed to access the server",
        ConnectionNotUsableError,
        "ask for a server firewall rule that admits this machine",
    ),
    Native(
        (),
        r"entra id access token|failed to authenticate the user|federated authentication context|"
        r"token-identified principal",
        ConnectionNotUsableError,
        "check authentication, login (client id) and password (client secret) of the connection, and that "
        "the identity is a user of the database",
    ),
    Native(
        (),
        r"sspi (provider|context|package)|service principal name",
        ConnectionNotUsableError,
        "get a Kerberos ticket on this machine (kinit, or airflow kerberos), and check server_spn of the "
        "connection",
    ),
    Native(
        (18452, 18456, 4060, 18470, 18486, 18487, 18488),
        r"login failed|cannot open database|database \".*\" does not exist|invalid authorization",
        ConnectionNotUsableError,
        "check login, password and database of the connection",
    ),
    Native(
        (),
        r"invalid value specified for connection string attribute",
        ConnectionNotUsableError,
        "correct it in the extra of the connection",
    ),
    Native(
        (),
        r"subject name does not match|hostname mismatch|ip address mismatch",
        ConnectionNotUsableError,
        "use the host name in the server's certificate, or set it as hostname_in_certificate of the "
        "connection",
    ),
    Native(
        (),
        r"certificate doesn't match|file path for server certificate|certificate validation failure|"
        r"error (opening|reading) certificate file",
        ConnectionNotUsableError,
        "check server_certificate of the connection: a file on this machine and on every Spark executor "
        "with the server's exact certificate",
    ),
    Native(
        (-2146893019,),
        r"certificate verify failed|no valid certificate",
        ConnectionNotUsableError,
        "make this machine trust the issuer of the server's certificate (SSL_CERT_FILE may name its "
        "certificate file); with encrypt: strict, server_certificate may name the server's own certificate; "
        "trust_server_certificate is for tests only",
    ),
    Native(
        (),
        r"encryption not supported|server does not support encryption",
        ConnectionNotUsableError,
        "install a certificate on the server; encrypt: no would send the password and all data unencrypted",
    ),
    Native(
        (),
        r"ssl provider|tls provider|ssl/tls",
        ConnectionNotUsableError,
        "check encrypt of the connection (strict needs SQL Server 2022 or later), and which TLS versions "
        "the server accepts",
    ),
    Native(
        (),
        r"error locating server/instance|requested instance was not available",
        SourceUnavailableError,
        "check the instance name, and that SQL Server Browser answers (UDP port 1434), or set the "
        "instance's port in the connection",
    ),
    Native(
        (1205,),
        r"deadlocked on|deadlock victim|deadlock detected",
        DeadlockError,
        "retry; this session was chosen as the deadlock victim",
    ),
    Native(
        (1222,),
        r"lock request time.?out|lock timeout",
        LockTimeoutError,
        "retry, or check for a transaction left open: a writer's, or that of a set-up, upgrade or "
        "drop, which locks the list of feeds",
    ),
    Native(
        (601, 3961),
        r"could not continue scan with nolock|modified by a ddl statement in another concurrent transaction",
        LockTimeoutError,
        "retry; rows moved, or a table was altered, while a capture was read without locks",
    ),
    Native(
        (3906,),
        r"because the database is read-only",
        ConnectionNotUsableError,
        "connect to the primary, or to the availability group's listener; feeds can only be written there",
    ),
    Native(
        (229, 230, 262, 300, 916, 15151, 15247),
        r"permission (was )?denied|do(es)? not have permission|not have the required permission|"
        r"cannot access the database|is not able to access the database|must be owner",
        PermissionDeniedError,
        "",
    ),
    Native(
        (1101, 1105, 3958, 5149, 9002, 40544, 40551, 40552),
        r"could not allocate|because of insufficient disk space|transaction log for database .* is full|"
        r"is (probably )?out of space|reached its size quota|because of excessive (tempdb|transaction log)|"
        r"not enough space on the disk|no space left on device|disk full",
        SourceUnavailableError,
        "free or add space (for a full log: back up the log), then retry",
    ),
    Native(
        (701, 802, 1204, 8645, 8651),
        r"insufficient (system )?memory|waiting for memory resources|requested memory grant|"
        r"cannot obtain a lock resource",
        SourceUnavailableError,
        "retry when the server is less busy, or give the server more memory",
    ),
    Native(
        (40197, 40501, 40613, 49918, 10928, 10929, 17809, 233, 10053, 10054, 596, 1219, 0),
        r"communication link failure|unable to establish connection|connection not open|"
        r"connection failure|connection was lost|connection is (broken|no longer usable)|"
        r"connection has been closed|timeout expired|unable to complete login|prelogin|"
        r"recovery is not possible|handshakes before login|"
        r"is not currently available|is currently (too )?busy|maximum number of .* connections|"
        r"please try again|not enough resources|limit .* has been reached|server rejected the connection|"
        r"tcp provider|network interfaces|protocol error|shutdown is in progress|terminating connection|"
        r"in recovery mode|is starting up|session is in the kill state|session has been disconnected|"
        r"severe error occurred on the current command",
        SourceUnavailableError,
        "retry, or check whether the server is running and reachable",
    ),
    Native(
        (8144, 8145, 8146),
        r"too many arguments|is not a parameter for procedure|no parameters and arguments were supplied",
        FeedSetupError,
        "the installed objects belong to another version of this package; run the install script of this "
        "version",
    ),
    Native(
        (208, 2812),
        r"invalid object name|could not find stored procedure|"
        r"(procedure|relation|function) .* does not exist",
        FeedNotFoundError,
        "the objects are not installed, were dropped, or are not visible to this login",
    ),
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
    77160: FeedSetupError,
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
