# SPDX-License-Identifier: Apache-2.0
"""
Reads a table, in the environment of its reader: ``python -m tests.readers.read
spark|duckdb delta|iceberg TABLE ROWS [PACKAGES]``.

``TABLE`` is the folder of a Delta table; for one of Iceberg, Spark takes the SQLite file of its catalog, and
DuckDB its newest metadata. ``ROWS`` is the file of Arrow batches that is written, ``PACKAGES`` what Spark
downloads.
"""

from __future__ import annotations

import sys

import pyarrow as pa

#: Catalog and name, as the tests' exports have them.
CATALOG, NAME = "tests", "nyc.flight"


def by_spark(format: str, table: str, packages: str) -> pa.Table:
    """Read through Spark, as its users do."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.jars.packages": packages,
    }
    if format == "delta":
        settings |= {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
    else:
        catalog = f"spark.sql.catalog.{CATALOG}"
        settings |= {
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "jdbc",
            f"{catalog}.uri": f"jdbc:sqlite:{table}",
            f"{catalog}.warehouse": f"{table}-none",
        }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    is_delta = format == "delta"
    frame = session.read.format("delta").load(table) if is_delta else session.table(f"{CATALOG}.{NAME}")
    rows = frame.toArrow()
    session.stop()
    return rows


def by_duckdb(format: str, table: str, packages: str) -> pa.Table:
    """Read through DuckDB's own extensions, which a package has."""
    import duckdb
    from duckdb_extensions import import_extension

    with duckdb.connect() as connection:
        for name in ("avro", format):
            import_extension(name, con=connection)
            connection.load_extension(name)
        connection.execute("set timezone = 'UTC'")
        return connection.sql(f"select * from {format}_scan('{table}')").to_arrow_table()


def main(reader: str, format: str, table: str, rows: str, packages: str = "") -> None:
    """Read, and leave the rows as Arrow."""
    read = {"spark": by_spark, "duckdb": by_duckdb}[reader]
    found = read(format, table, packages)
    with pa.ipc.new_file(rows, found.schema) as file:
        file.write_table(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
