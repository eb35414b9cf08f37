# SPDX-License-Identifier: Apache-2.0
"""Where the flights, their export and their Airflow lie, for the demos and for ``make ui``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.system.airflow_home import AirflowHome
from tests.system.demo.embedded import EmbeddedEngine
from tests.system.demo.engine import Engine
from tests.system.example_dags import copy_dags

DAILY, HOURLY, FOLLOW = "changefeed_quickstart", "changefeed_hourly", "changefeed_follow"
CAPTURING = "changefeed_capture"
CONSUMER = "warehouse"


@dataclass(frozen=True)
class Surroundings:
    """
    All that the example DAGs need around them, below one folder.

    :param folder: of everything but a server's database; made when something is written.
    :param server: where the feed is, if not in this folder.
    """

    folder: Path
    server: Engine | None = None

    @property
    def database(self) -> Path:
        """The embedded source's file; alone in its folder but for what SQLite puts beside it."""
        return self.folder / "data" / "flights.db"

    @property
    def engine(self) -> Engine:
        """Where the feed is."""
        return self.server or EmbeddedEngine(self.database)

    @property
    def export(self) -> Path:
        """The root of the output."""
        return self.folder / "export"

    @property
    def folded(self) -> Path:
        """Where the captured board is folded."""
        return self.folder / "folded"

    @property
    def connections(self) -> dict[str, dict[str, Any]]:
        """The Airflow connections that the DAGs name, as Airflow's connection JSON."""
        return {
            self.engine.conn_id: self.engine.connection,
            "spark_default": {"conn_type": "spark", "host": "local[2]"},
        }

    def write_dags(self, **constants: object) -> None:
        """
        Write copies of the example DAGs for these flights.

        :param constants: further constants at their top.
        """
        copy_dags(
            self.folder / "dags",
            CONN_ID=self.engine.conn_id,
            PATH=str(self.export),
            FOLD_PATH=str(self.folded),
            **constants,
        )

    def home(self, *, env: Mapping[str, str] | None = None, **options: Any) -> AirflowHome:
        """
        Return an Airflow, not started, for the DAGs that :meth:`write_dags` writes.

        :param env: further environment.
        :param options: further arguments of :class:`AirflowHome`.
        """
        # Seconds; Airflow's own default of five minutes is for people who have them.
        own = {"AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "5"}
        return AirflowHome(
            self.folder / "airflow", dags=self.folder / "dags", env={**own, **(env or {})}, **options
        )
