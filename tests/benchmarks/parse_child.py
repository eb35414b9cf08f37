# SPDX-License-Identifier: Apache-2.0
"""Parse a DAG file as Airflow's DAG processor does: ``python -m tests.benchmarks.parse_child FILE``."""

from __future__ import annotations

import sys

from tests.benchmarks.watch import measured

if __name__ == "__main__":
    from airflow.dag_processing.dagbag import DagBag

    with measured("parse") as result:
        bag = DagBag(sys.argv[1])
        result["dags"], result["errors"] = len(bag.dags), dict(bag.import_errors)
