# SPDX-License-Identifier: Apache-2.0
"""Faults of changefeed in a SQL Server database, as far as this login can check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_changefeed.core.fault import Examination, Fault, Limits, not_checked, shell
from airflow_changefeed.core.feed import parse_shard, shard_text
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConnectionNotUsableError,
    PermissionDeniedError,
    SourceUnavailableError,
)
from airflow_changefeed.sources.mssql.connection.errors import is_driver_error
from airflow_changefeed.sources.mssql.connection.pool import MssqlDatabase
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.doctor import captures as asked
from airflow_changefeed.sources.mssql.doctor import faults
from airflow_changefeed.sources.mssql.doctor.captures import CaptureCheck, count_faults, not_reported
from airflow_changefeed.sources.mssql.feed.catalog import load_feeds
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from airflow_changefeed.sources.mssql.names import quote, split_name
from airflow_changefeed.sources.mssql.rights import (
    capture_objects,
    feed_objects,
    feed_roles,
    installed_objects,
    rights,
)
from airflow_changefeed.sources.mssql.versions import registered
from airflow_changefeed.sources.shared import as_time, old_outbox

#: Engine editions of SQL Server on premises, and its first supported major version: a server with a lower one
#: imitates it, and reports less.
_BOXED, _FIRST_MAJOR = (1, 2, 3, 4), 14
_VIEW_STATE = (
    "Grant the login VIEW SERVER STATE (SQL Server 2019 and before), VIEW SERVER PERFORMANCE STATE (2022 and "
    "later) or VIEW DATABASE STATE (Azure SQL Database), or ask a DBA to check "
    "sys.dm_tran_database_transactions"
)
_VIEW_PAGES = (
    "Grant the user VIEW DEFINITION on the schema and VIEW DATABASE STATE (SQL Server 2022 and later: VIEW "
    "DATABASE PERFORMANCE STATE), or ask a DBA to check sys.dm_db_index_physical_stats"
)
_DELETED_ROWS = "deleted rows in the outboxes"
#: Deleted rows that an outbox may have; more than a thousand pages of them.
_KEPT_ROWS = 100_000
_OTHERWISE = "Fix the other faults, or run doctor again with a login that has more rights"


class MssqlInspect:
    """The part of the source that reports its faults."""

    database: MssqlDatabase

    def inspect(self, feed: str | None, limits: Limits) -> Examination:
        with self.database.connect() as session:
            (server,) = session.records(asked.SERVER, quote(self.database.schema))
        inspection = _Inspection(self.database, limits, server)
        inspection.run(feed)
        found = Examination.of(inspection.faults, inspection.facts())
        return replace(found, closed_feeds=tuple(inspection.closed))


@dataclass
class _Inspection:
    """
    One inspection.

    :param server: properties of the server, the database and the login.
    :param closed: feeds that the login may not read.
    :param names: of all objects in the schema visible to this login, in lower case.
    :param installed: the installed version; empty if unknown.
    :param cache: cache size of the sequence; likewise.
    """

    database: MssqlDatabase
    limits: Limits
    server: Mapping[str, Any]
    faults: list[Fault] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    names: frozenset[str] = frozenset()
    installed: str = ""
    cache: str = ""

    def facts(self) -> dict[str, str]:
        """Return informational facts."""
        server = self.server
        return {
            "server": str(server["product_version"]),
            "database": str(server["database_name"]),
            "user": self.user,
            "read committed snapshot": "on" if server["is_read_committed_snapshot_on"] else "off",
            "sequence cache": self.cache or "?",
            "changefeed": self.installed or "?",
        }

    @property
    def schema(self) -> str:
        """The schema that changefeed is installed in."""
        return self.database.schema

    @property
    def user(self) -> str:
        """The database's user whom the login is."""
        return str(self.server["user_name"])

    @property
    def sees_all(self) -> bool:
        """Whether this login sees all objects, or only those it may use."""
        return bool(self.server["sees_all"])

    @property
    def is_sql_server(self) -> bool:
        """Whether the server is SQL Server itself, in a supported version."""
        is_boxed = int(self.server["engine_edition"]) in _BOXED
        return not is_boxed or int(self.server["major_version"] or 0) >= _FIRST_MAJOR

    def run(self, feed: str | None) -> None:
        """Check everything, or only one feed."""
        self._look("objects", self._objects)
        try:
            with self.database.connect() as session:
                feeds = load_feeds(session, self.schema, feed)
        except PermissionDeniedError as problem:
            self.faults.append(faults.no_feeds(self.schema, self.user, feed, problem))
            return
        if feeds is None:
            ours = installed_objects()
            # Another application's schema may have some of the names by chance.
            if not self.sees_all or 2 * len(self.names & ours.keys()) < len(ours):
                self.faults[:] = [faults.not_installed(str(self.database.server), self.schema)]
            return
        names = [each.name for each in feeds]
        self._look("versions", lambda session: self._versions(session, names))
        self._look("options", lambda session: self._options(session, names))
        self._look("open transactions", self._transactions, remedy=_VIEW_STATE)
        self._look(
            "deleted rows in the outboxes", lambda session: self._kept(session, feed), remedy=_VIEW_PAGES
        )
        self.closed = self._closed(feeds) if feed is None else []
        self.faults += [faults.closed_feed(self.user, name) for name in self.closed]
        for each in feeds:
            if each.name not in self.closed:
                self._feed(each)
        if any(each.capture for each in feeds):
            self._look("captures", lambda session: self._captures(session, feeds))
        database, durability = self.server["database_name"], self.server["delayed_durability"]
        self.faults += faults.durability_faults(database, durability or 0)
        self.faults += faults.owner_faults(self.schema, self.server["schema_owner"])

    def _closed(self, feeds: list[MssqlFeed]) -> list[str]:
        """Return the feeds that this login may not read, if there are others: it need not read all."""
        if self.sees_all:
            return []
        with self.database.connect() as session:
            names = [f"{quote(self.schema)}.{quote(f'read_feed:{each.name}')}" for each in feeds]
            may = [session.rows(asked.rights(1), name, "EXECUTE")[0][0] for name in names]
        closed = [each.name for each, answer in zip(feeds, may, strict=True) if not answer]
        return closed if len(closed) < len(feeds) else []

    def _look(self, what: str, look: Callable[[Session], None], *, remedy: str = _OTHERWISE) -> None:
        """Run a check; what cannot be checked is a fault of its own."""
        try:
            # A connection for each, because its state is unknown after an error.
            with self.database.connect() as session:
                look(session)
        except (ConnectionNotUsableError, SourceUnavailableError):
            raise
        except Exception as problem:
            if not isinstance(problem, ChangefeedError) and not is_driver_error(problem):
                raise
            text = " ".join(str(problem).split())
            self.faults.append(not_checked(what, text, remedy))

    def _objects(self, session: Session) -> None:
        """Find what is wrong with the schema's objects."""
        rows = session.records(asked.OBJECTS, self.schema)
        types = session.records(asked.TYPES, self.schema)
        self.names = frozenset(row["name"].casefold() for row in (*rows, *types))
        self.faults += faults.module_faults(self.schema, rows)
        if not self.sees_all:
            self.faults.append(
                not_checked(
                    f"whether all objects of schema {self.schema} exist",
                    f"{self.user} sees only objects that it may use",
                    f"grant view definition on schema::{quote(self.schema)} to {quote(self.user)}, or ask a "
                    "DBA to run this command",
                )
            )
        elif self.names:
            remedy = "Run the install script of this version"
            self.faults += faults.missing_objects(self.schema, installed_objects(), self.names, remedy)

    def _versions(self, session: Session, feeds: list[str]) -> None:
        ((installed,),) = session.rows(f"select {quote(self.schema)}.[version]()")
        self.installed = str(installed)
        rows = session.records(registered(self.schema, "name, version, upgrade_problem"))
        versions = {row["name"]: row["version"] for row in rows if row["name"] in feeds}
        problems = {row["name"]: row["upgrade_problem"] for row in rows if row["upgrade_problem"]}
        self.faults += faults.version_faults(self.installed, versions, problems)

    def _options(self, session: Session, feeds: list[str]) -> None:
        """Find what is wrong with options of tables and sequences."""
        schema, tells_locks = self.schema, self.is_sql_server
        tables = session.records(asked.TABLES, schema) if tells_locks else []
        self.faults += faults.lock_faults(schema, feeds, tables, session.records(asked.INDEXES, schema))
        sequences = session.records(asked.SEQUENCES, schema)
        self.faults += faults.sequence_faults(schema, sequences)
        self.cache = "".join(str(row["cache_size"]) for row in sequences if row["name"] == "sequence")
        unseen = [] if tells_locks else ["lock escalation and page locks of the tables"]
        if not sequences and self.sees_all:
            unseen.append("options of the sequences")
        self.faults += [not_reported(one) for one in unseen]

    def _transactions(self, session: Session) -> None:
        seconds = int(self.limits.open_transaction.total_seconds())
        self.faults += faults.open_transaction_faults(session.records(asked.OPEN_TRANSACTIONS, seconds))

    def _kept(self, session: Session, feed: str | None) -> None:
        """Find outboxes whose deleted rows stay; a login that sees no outbox would find none."""
        if not self.sees_all:
            why = f"{self.user} sees only objects that it may use"
            self.faults.append(not_checked(_DELETED_ROWS, why, _VIEW_PAGES))
            return
        outbox = None if feed is None else f"outbox:{feed}"
        self.faults += faults.kept_row_faults(
            self.schema, session.records(asked.KEPT_ROWS, self.schema, outbox, _KEPT_ROWS)
        )

    def _captures(self, session: Session, feeds: list[MssqlFeed]) -> None:
        """Find what is wrong with captures."""
        look = CaptureCheck(
            session, self.schema, self.user, self.is_sql_server, sees_all=bool(self.server["sees_roles"])
        )
        self.faults += look.faults(feeds[0].feed_id if len(feeds) == 1 else None)

    def _feed(self, feed: MssqlFeed) -> None:
        """Find what is wrong with a feed."""
        upgrade = feed.upgrade_statement
        if self.sees_all:
            expected = feed_objects(feed.name, feed.kind, is_capture=feed.capture is not None)
            self.faults += faults.missing_objects(self.schema, expected, self.names, upgrade)
            if feed.capture is not None:
                expected = capture_objects(feed.name, range(len(feed.capture.tables)))
                refresh = shell("capture refresh", feed.name)
                self.faults += faults.missing_objects(self.schema, expected, self.names, refresh)
        if feed.table is None and self.sees_all:
            self.faults.append(faults.no_event_table(self.schema, feed.name))
        if self.server["sees_roles"]:
            self._look("roles", lambda session: self._roles(session, feed, upgrade))
        where = f"feed {feed.name}"
        self._look(f"permissions on {where}", lambda session: self._rights(session, feed, upgrade))
        if not self.sees_all or f"inspect_outbox:{feed.name}".casefold() in self.names:
            self._look(f"the outbox of {where}", lambda session: self._outbox(session, feed))
        compares = f"compare_capture:{feed.name}"
        if feed.capture is not None and (not self.sees_all or compares.casefold() in self.names):
            self._look(f"the rows of what {where} captures", lambda session: self._compare(session, feed))

    def _roles(self, session: Session, feed: MssqlFeed, upgrade: str) -> None:
        there = [row["name"] for row in session.records(asked.ROLES)]
        self.faults += faults.missing_roles(feed_roles(self.schema, feed.name), there, upgrade)

    def _rights(self, session: Session, feed: MssqlFeed, upgrade: str) -> None:
        """Find rights of the expected role that this login lacks."""
        is_capture = feed.capture is not None or self._is_unread_capture(feed)
        wanted = {
            f"{right.object}:{feed.name}" if right.is_feed else right.object: right
            for right in rights(self.limits.role, is_capture=is_capture)
        }
        # Missing objects are reported already.
        seen = {
            name: right
            for name, right in wanted.items()
            if not self.sees_all or name.casefold() in self.names
        }
        # A table is invisible without any right on it.
        table = feed.table or ".".join(map(quote, split_name(feed.name)))
        questions = [(right.full(self.schema, feed.name), right.permission) for right in seen.values()]
        questions += [(table, "SELECT")]
        text = asked.rights(len(questions))
        ((*answers, may_select),) = session.rows(text, *(value for pair in questions for value in pair))
        lacks: dict[str, list[str]] = {}
        for (name, right), may in zip(seen.items(), answers, strict=True):
            if not may:
                lacks.setdefault(right.role, []).append(f"{right.permission.lower()} {self.schema}.{name}")
        is_there = feed.table is not None or not self.sees_all
        if is_capture and is_there and not may_select:
            # Of a capture, its readers have this right, too.
            lacks.setdefault("readers", []).append(f"select {feed.name}")
        is_outsider = False
        for role, missing in lacks.items():
            full = f"{self.schema}.{role}:{feed.name}"
            ((is_member,),) = session.rows(asked.MEMBER, full)
            remedy = upgrade if is_member else None
            is_reader = role == "readers"
            self.faults.append(
                faults.no_right(self.user, feed.name, missing, full, remedy, is_reader=is_reader)
            )
            is_outsider = is_outsider or (is_reader and not is_member)
        # Who is no reader may not see whether the feed is a capture, whose readers may select.
        if not is_capture and is_there and not may_select and not is_outsider:
            self.faults.append(faults.no_select(self.user, feed.name, table))

    def _is_unread_capture(self, feed: MssqlFeed) -> bool:
        """Whether it is a capture whose table this login does not see, but another of its objects."""
        plain = feed_objects(feed.name, feed.kind)
        own = feed_objects(feed.name, feed.kind, is_capture=True).keys() - plain.keys()
        return any(name.casefold() in self.names for name in own)

    def _compare(self, session: Session, feed: MssqlFeed) -> None:
        """Count the rows of captured tables; seals only compare the server's row count if that agrees."""
        rows = session.records(*feed.call("compare_capture", {}))
        self.faults += count_faults(feed.name, rows)

    def _outbox(self, session: Session, feed: MssqlFeed) -> None:
        for row in session.results(*feed.call("inspect_outbox", {}))[0]:
            shard, hint = shard_text(parse_shard(row["shard_id"])), format_time(as_time(row["time_hint"]))
            self.faults += old_outbox(feed.name, shard, hint, float(row["age"]), self.limits)
            if row["hangs"] is not None:
                self.faults.append(faults.hanging(feed.name, shard, row["hangs"], feed.object("outbox")))
