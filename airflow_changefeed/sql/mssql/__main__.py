# SPDX-License-Identifier: Apache-2.0
"""Write the install script for DBAs: ``python -m airflow_changefeed.sql.mssql [schema] > changefeed.sql``."""

from __future__ import annotations

import argparse
import sys

from airflow_changefeed.sql.mssql import DEFAULT_SCHEMA, SEQUENCE_CACHE, script


def main() -> None:
    """Write the script to the standard output."""
    parser = argparse.ArgumentParser(prog="python -m airflow_changefeed.sql.mssql", description=__doc__)
    parser.add_argument("schema", nargs="?", default=DEFAULT_SCHEMA, help="schema of all objects")
    parser.add_argument(
        "--sequence-cache", type=int, default=SEQUENCE_CACHE, help="cache size of each new sequence"
    )
    options = parser.parse_args()
    sys.stdout.write(script(options.schema, sequence_cache=options.sequence_cache))


if __name__ == "__main__":
    main()
