# SPDX-License-Identifier: Apache-2.0
"""What can be made wrong on a T-SQL server, and how it is cured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_changefeed.core.fault import Examination, Fault, FaultKind
from airflow_changefeed.doctor.doctor import examine
from airflow_changefeed.sql.mssql import install_script
from tests.integration.mssql.server import Client, Database
from tests.unit.export.ailments import ListedVariables

FEED, SERIALIZED, CONSUMER = "myservice.Doctor", "myservice.Nurse", "warehouse"
GONE = "myservice.Gone"
OUTBOX = f"[changefeed].[outbox:{FEED}]"
#: What a server other than SQL Server may not tell.
UNSEEN = {
    "lock escalation and page locks of the tables",
    "options of the sequences",
    "open transactions",
    "deleted rows in the outboxes",
}


@dataclass
class Patient:
    """A feed with two exported events, its consumer and Variable: all is well."""

    database: Database
    client: Client
    variables: ListedVariables

    def examine(self, **options: Any) -> Examination:
        """Look at everything."""
        with self.database.source() as source:
            return examine(source, self.variables, **options)

    def faults(self, feed: str | None = None) -> list[Fault]:
        """Look; what this server cannot tell is no fault of the feed."""
        return [fault for fault in self.examine(feed=feed).faults if not is_unseen(fault)]


def is_unseen(fault: Fault) -> bool:
    """Whether a check could not be made, as this server does not tell."""
    return fault.kind is FaultKind.NOT_CHECKED and set(fault.place.split("; ")) <= UNSEEN


# ---- faults, made and cured


def run_batch(client: Client, database: Database, name: str, kind: str = "procedure") -> None:
    """Run again what makes one object of the installation."""
    batches = install_script(sequence_cache=database.sequence_cache)
    (batch,) = (text for text in batches if f"{kind} [changefeed].[{name}]" in text.split("\nas\n")[0])
    client.results(batch)


def _edit(patient: Patient) -> None:
    """A person writes into the consumer's Variable."""
    (key,) = (name for name in patient.variables.values if name.endswith(f":{CONSUMER}:{FEED}"))
    patient.variables.set(key, patient.variables.values[key].replace("test", "me"))


def _ahead(patient: Patient) -> None:
    """A writer whose clock is two hours ahead, in a feed that lets him."""
    patient.client.results(
        f"exec changefeed.setup_feed N'{FEED}', @outbox = 1, @time_tolerance_ms = 86400000"
    )
    patient.client.results(
        f"insert into {FEED} (EventID) values (7); insert into {OUTBOX} (shard_id, time_hint, EventID) "
        "values (7, dateadd(hour, 2, sysutcdatetime()), 7)"
    )
    with patient.database.source() as source:
        source.drain(FEED)


def _forget_ahead(patient: Patient) -> None:
    for table in ("feed", "state"):
        patient.client.results(f"delete from [changefeed].[{table}:{FEED}] where shard_id = 7")
    patient.client.results(f"delete from {FEED} where EventID = 7")


def _empty(patient: Patient) -> None:
    patient.client.results(f"delete from {OUTBOX}")


def _lease(consumer: str, seconds: float) -> Callable[[Patient], None]:
    def take(patient: Patient) -> None:
        with patient.database.source() as source:
            source.acquire_leases(
                consumer, FEED, [0], holder="dag/run/task/1", seconds=seconds, all_or_none=True
            )

    return take


def _release(patient: Patient) -> None:
    with patient.database.source() as source:
        tokens = {row.shard: row.fencing_token for row in source.cursors(FEED, CONSUMER)}
        source.release_leases(CONSUMER, FEED, tokens, holder="dag/run/task/1")


def _sql(text: str) -> Callable[[Patient], None]:
    return lambda patient: (patient.client.results(text), None)[1]


Undo = Callable[[Patient], None] | None
#: In the order in which they are made and cured: how a fault is made, how it is undone (None: its remedy is a
#: statement), what its text has.
FAULTS: dict[str, tuple[FaultKind, Callable[[Patient], None], Undo, str]] = {
    "clock ahead": (
        FaultKind.HIGH_WATER_AHEAD,
        _ahead,
        _forget_ahead,
        f"feed {FEED}, shard 7: its high-water time is",
    ),
    "idle consumer": (
        FaultKind.CONSUMER_IDLE,
        _sql(
            "insert into [changefeed].[consumers] (feed_id, consumer, shard, start_ulid, ulid, began, ack, "
            "moved_at, moved_by, owner) select feed_id, N'lake', N'0', 0x00000000000000000000000000000000, "
            "0x00000000000000000000000000000000, 'chosen', 0x00000000000000000000000000000000, '2024-05-06', "
            "N'me', "
            f"user_name() from [changefeed].[feeds] where name = N'{FEED}'"
        ),
        _sql("delete from [changefeed].[consumers] where consumer = N'lake'"),
        "the consumer has not moved since 2024-05-06T00:00:00Z and holds back purges: shard 0",
    ),
    "lease of the dead": (
        FaultKind.LEASE_EXPIRED,
        _lease("lake", 0.002),
        lambda patient: None,
        "dag/run/task/1 did not release its lease",
    ),
    "lease of the sleeping": (
        FaultKind.LEASE_STUCK,
        _lease(CONSUMER, 86_400),
        _release,
        "holds the lease until",
    ),
    "sequence of leases": (
        FaultKind.OBJECT_MISSING,
        _sql("drop sequence [changefeed].[fencing_token]"),
        lambda patient: patient.client.results(
            "create sequence [changefeed].[fencing_token] as bigint start with 1000000 increment by 1 cache 1"
        ),
        "sequence changefeed.fencing_token: the object is missing",
    ),
    "outbox that nobody drains": (
        FaultKind.OUTBOX_NOT_DRAINED,
        _sql(f"insert into {OUTBOX} (time_hint, EventID) values ('2024-05-06T07:08:09', 2)"),
        _empty,
        f"feed {FEED}, shard 0: the first row in its outbox has the time_hint 2024-05-06T07:08:09Z",
    ),
    "order_sequence of a writer's own": (
        FaultKind.OUTBOX_HANGS,
        _sql(f"insert into {OUTBOX} (order_sequence, EventID) values (9000000000000000000, 2)"),
        _empty,
        "a writer set order_sequence 9000000000000000000 explicitly",
    ),
    "procedure of the installation": (
        FaultKind.OBJECT_MISSING,
        _sql("drop procedure [changefeed].[check_table]"),
        lambda patient: run_batch(patient.client, patient.database, "check_table"),
        "procedure changefeed.check_table: the object is missing. Run the install script",
    ),
    "procedure of a feed": (
        FaultKind.OBJECT_MISSING,
        _sql(f"drop procedure [changefeed].[insert_history:{FEED}]"),
        None,
        f"procedure changefeed.insert_history:{FEED}: the object is missing",
    ),
    "procedure of serialized writers": (
        FaultKind.OBJECT_MISSING,
        _sql(f"drop procedure [changefeed].[lock_feed:{SERIALIZED}]"),
        None,
        f"procedure changefeed.lock_feed:{SERIALIZED}: the object is missing",
    ),
    "role of a feed": (
        FaultKind.OBJECT_MISSING,
        _sql(
            f"alter role [changefeed.writers:{FEED}] drop member [role:{FEED}]; "
            f"revoke insert on {OUTBOX} from [changefeed.writers:{FEED}]; "
            f"drop role [changefeed.writers:{FEED}]"
        ),
        None,
        f"role changefeed.writers:{FEED}: the role does not exist",
    ),
    "another version of a feed": (
        FaultKind.FEED_VERSION_DIFFERS,
        _sql(f"update [changefeed].[feeds] set version = '0.0.1' where name = N'{FEED}'"),
        _sql("update [changefeed].[feeds] set version = [changefeed].[version]()"),
        f"feed {FEED}: the feed has version 0.0.1, but version",
    ),
    "second index on an outbox": (
        FaultKind.OUTBOX_INDEX,
        _sql(f"create index extra on {OUTBOX} (time_hint)"),
        _sql(f"drop index extra on {OUTBOX}"),
        f"on changefeed.outbox:{FEED}: locks on a second index",
    ),
    "table of ours": (
        FaultKind.TABLE_MISSING,
        _sql("drop table [changefeed].[stale_marks]"),
        lambda patient: run_batch(patient.client, patient.database, "stale_marks", "create table"),
        "table changefeed.stale_marks: this table was dropped",
    ),
    "what a table of ours hides": (
        FaultKind.NOT_CHECKED,
        lambda patient: None,
        lambda patient: None,
        f"stale marks of feed {FEED}:",
    ),
    "what a table of ours hides of another feed": (
        FaultKind.NOT_CHECKED,
        lambda patient: None,
        lambda patient: None,
        f"stale marks of feed {SERIALIZED}:",
    ),
    "event table": (
        FaultKind.EVENT_TABLE_MISSING,
        _sql(f"drop table {GONE}"),
        _sql(f"exec changefeed.drop_feed N'{GONE}'"),
        f"feed {GONE}: its event table was dropped or renamed",
    ),
    "what an event table hides": (
        FaultKind.NOT_CHECKED,
        lambda patient: None,
        lambda patient: None,
        f"shards of feed {GONE}",
    ),
    "Variable of the idle consumer": (
        FaultKind.VARIABLE_MISSING,
        lambda patient: None,
        lambda patient: None,
        f":lake:{FEED}",
    ),
    "Variable by hand": (
        FaultKind.VARIABLE_EDITED,
        _edit,
        lambda patient: None,
        f":{CONSUMER}:{FEED}: its digest does not match",
    ),
}
