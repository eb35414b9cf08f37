# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed job-connection``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from airflow_changefeed.cli.command import command, open_feeds

if TYPE_CHECKING:
    from argparse import Namespace


@command
def job_connection(args: Namespace) -> None:
    """Print how a job reaches the feed and the output, with its secrets."""
    from airflow_changefeed.export.job_connection import JobConnection
    from airflow_changefeed.hooks.changefeed_output import storage_options

    with open_feeds(args.conn_id) as source:
        connection = JobConnection(source.describe(), storage_options(args.path, args.path_conn_id))
    sys.stdout.write(f"{connection.to_json()}\n")
