# SPDX-License-Identifier: Apache-2.0
"""Errors that SQL Server and its driver raise by themselves, known by their English texts."""

from __future__ import annotations

from typing import NamedTuple

from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConnectionNotUsableError,
    DeadlockError,
    FeedNotFoundError,
    FeedSetupError,
    LockTimeoutError,
    PermissionDeniedError,
    SourceUnavailableError,
)


class Native(NamedTuple):
    """
    Errors of the server or driver that mean the same to us.

    :param numbers: SQL Server's, for the reader; the driver does not tell them.
    :param pattern: of the texts, in lower case.
    :param advice: what to do; empty where that depends on the text.
    """

    numbers: tuple[int, ...]
    pattern: str
    error: type[ChangefeedError]
    advice: str


#: In the order of looking: a text may fit several.
NATIVE = (
    Native(
        (18401, 921, 922, 927, 952, 976, 978, 979, 983, 988),
        r"script upgrade mode|is being recovered|has not been recovered yet|in the middle of a restore|"
        r"is in transition|in an availability group and is currently|try the operation again later",
        SourceUnavailableError,
        "retry; where it stays so, connect to the availability group's listener, or look whether its "
        "secondary may be read (read_only_replica of the connection)",
    ),
    Native(
        (40615, 40914),
        r"is not allowed to access the server",
        ConnectionNotUsableError,
        "ask for a firewall rule of the server for where this runs",
    ),
    Native(
        (),
        r"entra id access token|failed to authenticate the user|federated authentication context|"
        r"token-identified principal",
        ConnectionNotUsableError,
        "check authentication, login (a client id) and password (a client secret) of the connection, and "
        "that this identity is a user of the database",
    ),
    Native(
        (),
        r"sspi (provider|context|package)|service principal name",
        ConnectionNotUsableError,
        "get a Kerberos ticket where this runs (kinit, or airflow kerberos), and check server_spn of the "
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
        "connect by the name that the server's certificate has, or name it as hostname_in_certificate of the "
        "connection",
    ),
    Native(
        (),
        r"certificate doesn't match|file path for server certificate|certificate validation failure|"
        r"error (opening|reading) certificate file",
        ConnectionNotUsableError,
        "check server_certificate of the connection: a file, here and on every Spark executor, with the very "
        "certificate that the server shows",
    ),
    Native(
        (-2146893019,),
        r"certificate verify failed|no valid certificate",
        ConnectionNotUsableError,
        "let this machine trust who signed the server's certificate (SSL_CERT_FILE may name a file of "
        "theirs); with encrypt: strict, server_certificate may name the server's own; "
        "trust_server_certificate is for tests",
    ),
    Native(
        (),
        r"encryption not supported|server does not support encryption",
        ConnectionNotUsableError,
        "give the server a certificate; encrypt: no would send the password and all else in the open",
    ),
    Native(
        (),
        r"ssl provider|tls provider|ssl/tls",
        ConnectionNotUsableError,
        "check encrypt of the connection (strict needs SQL Server 2022 or later), and which versions of TLS "
        "the server takes",
    ),
    Native(
        (),
        r"error locating server/instance|requested instance was not available",
        SourceUnavailableError,
        "check the instance's name, and that SQL Server Browser answers (UDP port 1434), or give the "
        "instance's port in the connection",
    ),
    Native(
        (1205,),
        r"deadlocked on|deadlock victim|deadlock detected",
        DeadlockError,
        "retry: it was chosen as the victim of a deadlock",
    ),
    Native(
        (1222,),
        r"lock request time.?out|lock timeout",
        LockTimeoutError,
        "retry, or look for a transaction that was left open",
    ),
    Native(
        (601, 3961),
        r"could not continue scan with nolock|modified by a ddl statement in another concurrent transaction",
        LockTimeoutError,
        "retry: rows moved, or a table was altered, while a capture was looked at without locks",
    ),
    Native(
        (3906,),
        r"because the database is read-only",
        ConnectionNotUsableError,
        "connect to the primary, or to the availability group's listener: feeds are written there",
    ),
    Native(
        (229, 230, 262, 300, 916, 15151, 15247),
        r"permission (was )?denied|do(es)? not have permission|not have the required permission|"
        r"cannot access the database|is not able to access the database|must be owner",
        PermissionDeniedError,
        "",
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
