# SPDX-License-Identifier: Apache-2.0
"""The fields of our tasks in a serialized DAG, besides those of every task."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    _Base = BaseOperator
else:
    _Base = object


class NamesConnections(_Base):
    """
    A task whose serialized form names its connections, which are not templates.

    The page in Airflow's UI finds by it which feeds there are; ids of connections are not secret.
    """

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        """Return the names of what is serialized."""
        fields = super().get_serialized_fields()  # type: ignore[no-untyped-call] # Airflow's
        return frozenset(fields) | {"changefeed_conn_id", "path_conn_id", "catalog_conn_id"}
