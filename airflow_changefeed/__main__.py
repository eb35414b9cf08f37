# SPDX-License-Identifier: Apache-2.0
"""``python -m airflow_changefeed``: the commands, on every Airflow."""

from airflow_changefeed.cli.changefeed import main

if __name__ == "__main__":
    main()
