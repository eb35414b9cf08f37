# SPDX-License-Identifier: Apache-2.0
"""
Merges changes again and again, in the environment of mssql-cdc-pyspark: ``python -m
tests.benchmarks.mssql_cdc_child FOLDER ROWS CHANGES ROUNDS``.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tests.benchmarks.watch import measured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

INSTANCE = "shop_Order"


def changes(rows: DataFrame, operation: int, number: int) -> DataFrame:
    """Return rows as CDC's change tables have them, of one transaction."""
    lsn = f"0x{number + 1:020X}"
    own = "cast(null as string)" if operation else f"'{lsn}'"
    return rows.selectExpr(
        "id",
        "id * 7 % 1000000 as customer",
        f"cast(id % 997 + {number} as double) / 4 as price",
        "concat('status ', id % 4) as status",
        "concat('note ', lpad(id, 12, ' '), ' of many') as note",
        f"'{INSTANCE}' as _capture_instance",
        f"'{lsn}' as _start_lsn",
        f"concat('0x', lpad(hex({'id' if operation else 'cast(null as bigint)'}), 20, '0')) as _seqval",
        f"{operation} as _operation",
        f"cast({'1' if operation else 'null'} as int) as _command_id",
        "timestamp_ntz'2013-06-01 00:00:00' as _commit_ts",
        f"{number} as _batch_id",
        f"{own} as _snapshot",
        "cast(null as int) as _chunk",
    )


def main(folder: str, rows: str, each: str, rounds: str) -> None:
    """Make the current table from a snapshot, warm up by rounds that do not count, and measure."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from mssql_cdc import apply_changes
    from mssql_cdc.spark import get_spark

    session = get_spark(master="local[2]")
    log, current = f"{folder}/changes", f"{folder}/current"

    def merge() -> None:
        tables = {"control_table": f"{folder}/control", "facts_table": f"{folder}/facts"}
        apply_changes(session, log, current, capture_instance=INSTANCE, keys=["id"], **tables)

    changes(session.range(int(rows)), 0, 0).write.format("delta").save(log)
    merge()
    step = int(rows) // int(each)
    for number in range(-2, int(rounds)):
        at = number + 3
        chosen = session.range(at, int(rows) + at, step).selectExpr(f"id % {rows} as id")
        # Of an update, CDC has the row before and the row behind it.
        for operation in (3, 4):
            changes(chosen, operation, at).write.format("delta").mode("append").save(log)
        if number < 0:
            merge()
            continue
        with measured(f"merge {number}"):
            merge()
    with measured("rows") as result:
        table = session.read.format("delta").load(current)
        last = f"0x{int(rounds) + 3:020X}"
        result.update(rows=table.count(), changed=table.where(table["_start_lsn"] == last).count())
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
