# SPDX-License-Identifier: Apache-2.0
"""Run the demo: ``python -m tests.system.demo``, with ``--mssql`` on the server of the environment."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys

from airflow_changefeed.exceptions import ChangefeedError
from tests.system.demo.engine import DemoError
from tests.system.demo.mssql import MssqlEngine
from tests.system.demo.run import FOLDERS, Demo
from tests.system.processes import HomeError, signals_raise


def main() -> int:
    """Return the exit code: 1 with the reason on stderr, or with a report of what is not as it should be."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--mssql", action="store_true", help="the feed is on a SQL Server")
    name = "demo-mssql" if parser.parse_args().mssql else "demo"
    folder = FOLDERS / name
    signals_raise()  # SIGTERM and a closed terminal end the load, too
    try:
        server = None
        if name == "demo-mssql":
            # Where this process's own Airflow, which reads the variable, puts what it writes.
            os.environ["AIRFLOW_HOME"] = str(folder / "client")
            server = MssqlEngine.from_environment(os.environ)
        return 0 if Demo(folder, server).run() else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (DemoError, ChangefeedError, HomeError) as error:
        print(f"make {name}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    # Airflow warns of connections that have values like "yes": too short to be masked in logs.
    logging.disable(logging.WARNING)
    sys.exit(main())
