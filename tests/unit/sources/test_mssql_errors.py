# SPDX-License-Identifier: Apache-2.0
"""Errors of SQL Server under our names, without a server."""

from __future__ import annotations

import pickle
import re
import uuid
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from mssql_python import exceptions as driver

from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConnectionNotUsableError,
    DeadlockError,
    FeedNotFoundError,
    FeedSetupError,
    LockTimeoutError,
    PermissionDeniedError,
    PurgedError,
    SourceUnavailableError,
    StaleVersionError,
    TerminalError,
)
from airflow_changefeed.sources.mssql.connection.errors import NATIVE, THROWN, name_error, thrown
from airflow_changefeed.sources.mssql.feed.catalog import load_feeds

FILES = files("airflow_changefeed.sql.mssql")


def _error(text: str, sqlstate: str = "Syntax error or access violation") -> driver.Error:
    return driver.ProgrammingError(sqlstate, f"[Microsoft][ODBC Driver 18 for SQL Server][SQL Server]{text}")


def test_what_our_procedures_throw_has_its_class_number_and_facts() -> None:
    """The message is the procedure's own, without what the driver puts before it."""
    for number in THROWN:
        error = name_error(_error(f"changefeed {number}: feed 's.T': x; y\nz"), feed="s.T", shard=3)
        assert type(error) is THROWN[number], number
        assert isinstance(error, ChangefeedError)
        assert str(error) == "feed 's.T': x; y\nz"
        assert error.facts == {"number": number, "feed": "s.T", "shard": 3}
        assert pickle.loads(pickle.dumps(error)).facts == error.facts  # noqa: S301 - our own bytes


def test_a_number_of_a_newer_installation_is_terminal() -> None:
    """A retry would throw it again; the message is told all the same."""
    error = name_error(_error("changefeed 77199: something new"))
    assert type(error) is TerminalError
    assert str(error) == "something new"


#: The English text of SQL Server, or of its driver, by number.
TEXTS = {
    18456: "Login failed for user 'me'.",
    4060: 'Cannot open database "feeds" requested by the login. The login failed.',
    18452: "Login failed. The login is from an untrusted domain and cannot be used.",
    -2146893019: "SSL Provider: [error:0A000086:SSL routines::certificate verify failed:self-signed]",
    18401: "Login failed for user 'me'. Reason: Server is in script upgrade mode. Only administrator can "
    "connect at this time.",
    921: "Database 'd' has not been recovered yet. Wait and try again.",
    922: "Database 'd' is being recovered. Waiting until recovery is finished.",
    927: "Database 'd' cannot be opened. It is in the middle of a restore.",
    952: "Database 'd' is in transition. Try the statement later.",
    976: "The target database, 'd', is participating in an availability group and is currently not "
    "accessible for queries. Either data movement is suspended or the availability replica is not enabled "
    "for read access.",
    978: "The target database ('d') is in an availability group and is currently accessible for connections "
    "when the application intent is set to read only.",
    979: "The target database ('d') is in an availability group and is currently not accessible for "
    "connections when the application intent is set to read only.",
    983: "Unable to access database 'd' because its replica role is RESOLVING which does not allow "
    "connections. Try the operation again later.",
    988: "Unable to access database 'd' because it lacks a quorum of nodes for high availability. Try the "
    "operation again later.",
    40615: "Cannot open server 's' requested by the login. Client with IP address '10.0.0.1' is not allowed "
    "to access the server.",
    40914: "Cannot open server 's' requested by the login. Client is not allowed to access the server.",
    18470: "Login failed for user 'me'. Reason: The account is disabled.",
    18486: "Login failed for user 'me' because the account is currently locked out.",
    18487: "Login failed for user 'me'.  Reason: The password of the account has expired.",
    18488: "Login failed for user 'me'.  Reason: The password of the account must be changed.",
    3906: 'Failed to update database "d" because the database is read-only.',
    596: "Cannot continue the execution because the session is in the kill state.",
    1219: "Your session has been disconnected because of a high priority DDL operation.",
    0: "A severe error occurred on the current command.  The results, if any, should be discarded.",
    17809: "Could not connect because the maximum number of '1' user connections has already been reached.",
    8144: "Procedure or function poll_feed:s.T has too many arguments specified.",
    8145: "@consumer is not a parameter for procedure poll_feed:s.T.",
    8146: "Procedure poll_feed:s.T has no parameters and arguments were supplied.",
    1205: "Transaction (Process ID 56) was deadlocked on lock resources with another process and has been "
    "chosen as the deadlock victim. Rerun the transaction.",
    1222: "Lock request time out period exceeded.",
    229: "The EXECUTE permission was denied on the object 'read_feed:s.T', schema 'changefeed'.",
    230: "The SELECT permission was denied on the column 'x' of the object 'y'.",
    262: "CREATE TABLE permission denied in database 'd'.",
    300: "VIEW SERVER STATE permission was denied on object 'server', database 'master'.",
    916: 'The server principal "me" is not able to access the database "d".',
    15151: "Cannot alter the role 'x', because it does not exist or you do not have permission.",
    15247: "User does not have permission to perform this action.",
    208: "Invalid object name 'changefeed.feeds'.",
    2812: "Could not find stored procedure 'changefeed.drain_feed:s.T'.",
    40197: "The service has encountered an error processing your request. Please try again.",
    601: "Could not continue scan with NOLOCK due to data movement.",
    3961: "Snapshot isolation transaction failed in database 'd' because the object accessed by the "
    "statement has been modified by a DDL statement in another concurrent transaction since the start of "
    "this transaction.",
    1101: "Could not allocate a new page for database 'd' because of insufficient disk space in filegroup "
    "'PRIMARY'. Create the necessary space by dropping objects in the filegroup, adding additional files to "
    "the filegroup, or setting autogrowth on for existing files in the filegroup.",
    1105: "Could not allocate space for object 's.T'.'pk' in database 'd' because the 'PRIMARY' filegroup is "
    "full. Create disk space by deleting unneeded files, dropping objects in the filegroup, adding "
    "additional files to the filegroup, or setting autogrowth on for existing files in the filegroup.",
    3958: "Transaction aborted when accessing versioned row in table 's.T' in database 'd'. Requested "
    "versioned row was not found. Your tempdb is probably out of space. Please refer to BOL on how to "
    "configure tempdb for versioning.",
    5149: "MODIFY FILE encountered operating system error 112(There is not enough space on the disk.) while "
    "attempting to expand the physical file 'd.mdf'.",
    9002: "The transaction log for database 'd' is full due to 'LOG_BACKUP'.",
    40544: "The database 'd' has reached its size quota. Partition or delete data, drop indexes, or consult "
    "the documentation for possible resolutions.",
    40551: "The session has been terminated because of excessive TEMPDB usage. Try modifying your query to "
    "reduce the temporary table space usage.",
    40552: "The session has been terminated because of excessive transaction log space usage. Try modifying "
    "fewer rows in a single transaction.",
    701: "There is insufficient system memory in resource pool 'default' to run this query.",
    802: "There is insufficient memory available in the buffer pool.",
    1204: "The instance of the SQL Server Database Engine cannot obtain a LOCK resource at this time. Rerun "
    "your statement when there are fewer active users.",
    8645: "A timeout occurred while waiting for memory resources to execute the query in resource pool "
    "'default' (2). Rerun the query.",
    8651: "Could not perform the operation because the requested memory grant was not available in resource "
    "pool 'default' (2). Rerun the query, reduce the query load, or check resource governor configuration "
    "setting.",
    40501: "The service is currently busy. Retry the request after 10 seconds.",
    40613: "Database 'd' on server 's' is not currently available. Please retry the connection later.",
    49918: "Cannot process request. Not enough resources to process request. Please retry you request later.",
    10928: "Resource ID: 1. The session limit for the database is 90 and has been reached.",
    10929: "The server is currently too busy to support requests greater than 30 for this database.",
    233: "Shared Memory Provider: No process is on the other end of the pipe. Communication link failure",
    10053: "TCP Provider: An established connection was aborted by the software in your host machine.",
    10054: "TCP Provider: Error code 0x2746",
}


def test_what_the_server_raises_is_known_by_its_text() -> None:
    """Each number that the table names, with the feed and shard that the call was about."""
    for number, error in [(number, native.error) for native in NATIVE for number in native.numbers]:
        shard = uuid.UUID(int=7)
        found = name_error(_error(TEXTS[number]), feed="s.T", shard=shard)
        assert type(found) is error, number
        assert isinstance(found, ChangefeedError)
        assert str(found).startswith(f"feed 's.T' shard {shard}: ")
        assert found.facts == {"feed": "s.T", "shard": shard}
        assert "[Microsoft]" not in str(found)


def test_what_the_driver_says_itself_is_known_too() -> None:
    """A connection that broke is transient, a refused login is not."""
    for state, error in [
        ("Communication link failure", SourceUnavailableError),
        ("Client unable to establish connection", SourceUnavailableError),
        ("Timeout expired", SourceUnavailableError),
        ("Login timeout expired", SourceUnavailableError),
        ("Unable to complete login process due to delay in prelogin response", SourceUnavailableError),
        ("Client unable to establish connection due to prelogin failure", SourceUnavailableError),
        ("The connection is broken and recovery is not possible.", SourceUnavailableError),
        ("The connection is no longer usable because the server failed to respond", SourceUnavailableError),
        ("SQL Server Network Interfaces: Error Locating Server/Instance Specified", SourceUnavailableError),
        ("Cannot generate SSPI context", ConnectionNotUsableError),
        ("SSPI Provider: No Kerberos credentials available", ConnectionNotUsableError),
        ("Cannot generate federated authentication context", ConnectionNotUsableError),
        ("Encryption not supported on SQL Server.", ConnectionNotUsableError),
        ("Invalid value specified for connection string attribute 'Encrypt'", ConnectionNotUsableError),
        ("Invalid authorization specification", ConnectionNotUsableError),
    ]:
        assert type(name_error(_error("?", state))) is error, state


def test_a_lock_timeout_is_transient_whatever_state_the_driver_gives() -> None:
    """SQL Server's state for it is that of any timeout."""
    error = name_error(_error("Lock request time out period exceeded.", "Timeout expired"))
    assert type(error) is LockTimeoutError
    assert error.transient


def test_our_number_counts_before_words_that_mean_something_else() -> None:
    """A message of ours may name a table after anything."""
    error = name_error(_error("changefeed 77104: feed 's.deadlock permission denied': purged"))
    assert type(error) is PurgedError


def test_an_older_installation_says_how_to_upgrade_it() -> None:
    """Its table of feeds lacks a column; another error of the driver stays what it is."""

    class Old:
        text = "Invalid column name 'max_hold_ms'."

        def results(self, *_: object, **__: object) -> None:
            raise _error(self.text)

    session: Any = Old()
    with pytest.raises(
        FeedSetupError, match=r"older version of changefeed\. Upgrade it: airflow-changefeed install"
    ):
        load_feeds(session, "changefeed")
    session.text = "Divide by zero error encountered."
    with pytest.raises(driver.ProgrammingError):
        load_feeds(session, "changefeed")


def test_other_errors_stay_what_they_are() -> None:
    """Those of the driver that have no name with us, those of others, and our own."""
    for error in (_error("Arithmetic overflow"), ValueError("deadlock"), FeedNotFoundError("x")):
        assert name_error(error) is error
        assert thrown(error) is None


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (
            "The EXECUTE permission was denied on the object 'seal_feed:s.O'Neill', database 'd', "
            "schema 'changefeed'.",
            "alter role [changefeed.operators:s.O'Neill] add member",
        ),
        (
            "The EXECUTE permission was denied on the object 'read_feed:s.T', database 'd', schema 'feeds'.",
            "alter role [feeds.readers:s.T] add member",
        ),
        (
            "The INSERT permission was denied on the object 'outbox:s.T', database 'd', schema 'changefeed'.",
            "alter role [changefeed.writers:s.T] add member",
        ),
        (
            "The SELECT permission was denied on the object 'feeds', database 'd', schema 'changefeed'.",
            "every role changefeed.readers:",
        ),
        (
            "The EXECUTE permission was denied on the object 'list_cursors', database 'd', schema 'x'.",
            "every role x.readers:",
        ),
        (
            "The UPDATE permission was denied on the object 'sequence', database 'd', schema 'changefeed'.",
            "every role changefeed.writers:",
        ),
        (
            "The EXECUTE permission was denied on the object 'setup_feed', database 'd', schema 'x'.",
            "ask a DBA to do it",
        ),
        (
            "The SELECT permission was denied on the object 'My]Event', database 'd', schema 'myservice'.",
            "grant select on [myservice].[My]]Event] to",
        ),
        (
            "The SELECT permission was denied on the column 'x' of the object 'MyEvent\", database 'd', "
            "schema 'myservice'.",
            "grant select on [myservice].[MyEvent] to",
        ),
        (
            "The UPDATE permission was denied on the object 'state:s.T', database 'd', schema 'changefeed'.",
            "a member of the feed's role",
        ),
        ("CREATE TABLE permission denied in database 'd'.", "a member of the feed's role"),
        (
            "permission denied for procedure drain_feed:s.t",
            "alter role [changefeed.operators:s.t] add member",
        ),
    ],
)
def test_a_missing_permission_names_the_object_and_what_to_ask_a_dba_for(text: str, remedy: str) -> None:
    """The role that has it; of the event table, which no role of ours has, the grant."""
    error = name_error(_error(text), feed="s.T")
    assert isinstance(error, PermissionDeniedError)
    assert text.rstrip(".") in str(error)
    assert remedy in str(error)


def test_every_object_that_somebody_is_granted_has_a_role() -> None:
    """As the templates grant them."""
    text = (FILES / "feed" / "grants.batch.sql").read_text(encoding="utf-8")
    granted = re.findall(r"on <<schema>>\.\[(\w+):<<name>>\] to \[<<schema_name>>\.(\w+):", text)
    assert len(granted) >= 15
    for name, role in granted:
        error = name_error(_error(f"permission denied for procedure {name}:s.T"))
        assert f"alter role [changefeed.{role}:s.T] add member" in str(error), name


def test_the_docs_and_the_files_have_the_numbers_that_python_knows() -> None:
    """Each with its class, and whether a retry may help."""
    page = (Path(__file__).parents[3] / "docs/reference/sql-server.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d{5}) \| `(\w+)`(, transient)? \|", page, re.MULTILINE)
    told = {int(number): (name, bool(transient)) for number, name, transient in rows}
    assert told == {number: (error.__name__, error.transient) for number, error in THROWN.items()}
    files = [file.read_text(encoding="utf-8") for file in Path(str(FILES)).rglob("*.sql")]
    assert {int(number) for text in files for number in re.findall(r"changefeed (\d+):", text)} == set(THROWN)


def test_a_secret_is_not_told_in_whatever_spelling() -> None:
    """As it is, as a connection string has it, and as Python writes it."""
    secret = "hun}ter\\2"
    for said in (secret, secret.replace("}", "}}"), repr(secret)):
        error = name_error(_error(f"Login failed: {said}"), secret=secret)
        assert "hun" not in str(error)
        assert "***" in str(error)


def test_a_deadlock_is_a_lock_that_was_not_waited_for() -> None:
    """Whoever catches lock timeouts catches it, and whoever tries again knows it."""
    assert type(name_error(_error(TEXTS[1205]))) is DeadlockError
    assert issubclass(DeadlockError, LockTimeoutError)


@pytest.mark.parametrize("number", [77132, 77155])
def test_a_stale_write_has_what_was_named_and_what_there_is_as_facts(number: int) -> None:
    """Also where the present value itself looks like the end of it."""
    error = name_error(
        _error(
            f'changefeed {number}: feed "s.T" is at resource version 5 (outbox, columns: a), not (b), '
            "not -3: nothing was changed. Read it again, then decide"
        ),
        feed="s.T",
    )
    assert isinstance(error, StaleVersionError)
    assert not error.transient
    facts = {name: error.facts[name] for name in ("expected_version", "present_version", "present", "feed")}
    present = "outbox, columns: a), not (b"
    assert facts == {"expected_version": -3, "present_version": 5, "present": present, "feed": "s.T"}
