# SPDX-License-Identifier: Apache-2.0
"""
Run DAGs of ``dags/`` by ``dag.test()``, in a process and an Airflow home of their own.

``python -m tests.system.run_dags '[["changefeed_hourly", "2013-01-01T01:00:00+00:00", null]]'``: DAG, logical
date and run configuration of each. The last line of the output is JSON: the states, and the Variables by key.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path

DAGS = Path(__file__).resolve().parents[2] / "dags"


def main(runs: str) -> None:
    """Make the metadata database, then run one after the other."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models import Variable
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    initdb()
    bag = DagBag(DAGS)
    states = []
    for name, logical_date, conf in json.loads(runs):
        for task in bag.dags[name].tasks:
            task.retries = 0  # dag.test sleeps between tries
        run = bag.dags[name].test(logical_date=datetime.fromisoformat(logical_date), run_conf=conf)
        states.append(str(run.state))
    with create_session() as session:
        variables = {variable.key: variable.val for variable in session.query(Variable)}
    print(json.dumps({"states": states, "variables": variables}))


if __name__ == "__main__":
    main(sys.argv[1])
