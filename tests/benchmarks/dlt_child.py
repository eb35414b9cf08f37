# SPDX-License-Identifier: Apache-2.0
"""
Loads the orders into a Delta table by dlt, in dlt's own environment: ``python -m tests.benchmarks.dlt_child
DATABASE FOLDER TABLE BACKEND``.

It reads the table as it is, once: without windows, and without what was deleted or changed meanwhile.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.benchmarks.watch import measured


def main(database: str, folder: str, table: str, backend: str) -> None:
    """Measure one run: extract, normalize and load."""
    os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
    import dlt
    import pyarrow.dataset  # noqa: F401  (before the clock runs)
    from deltalake import DeltaTable
    from dlt.sources.sql_database import sql_table

    pipeline = dlt.pipeline(
        "orders",
        pipelines_dir=f"{folder}/pipelines",
        destination=dlt.destinations.filesystem(Path(folder, "lake").as_uri()),
        dataset_name="shop",
    )
    source = sql_table(f"sqlite:///{database}", table=table, backend=backend)
    with measured("dlt") as result:
        pipeline.run(source, table_name="orders", table_format="delta").raise_on_failed_jobs()
        loaded = DeltaTable(f"{folder}/lake/shop/orders")
        result["rows"] = loaded.to_pyarrow_dataset().count_rows()


if __name__ == "__main__":
    main(*sys.argv[1:])
