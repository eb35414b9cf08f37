# SPDX-License-Identifier: Apache-2.0
"""Our own facet of a run; imported only where the OpenLineage client is installed, which brings attrs."""

from __future__ import annotations

import attr
from airflow.providers.common.compat.openlineage.facet import RunFacet

#: Key of the facet in a run.
KEY = "changefeed_window"
#: Names the schema, which is docs/reference/openlineage/changefeed-window-run-facet.json.
SCHEMA_URL = (
    "https://pypi.org/project/airflow-changefeed/changefeed-window-run-facet.json"
    "#/$defs/ChangefeedWindowRunFacet"
)


@attr.define
class ChangefeedWindowRunFacet(RunFacet):  # type: ignore[misc] # Any: the client is not a dependency
    """
    What a run was about; times are ISO 8601 in UTC.

    :param windowStart: of all windows together, inclusive.
    :param windowEnd: exclusive.
    :param sealedUntil: exclusive time before which no event can come any more.
    :param frontier: exclusive time before which the consumer misses nothing.
    :param at: exclusive feed time of the state that was written or compared.
    """

    feed: str
    consumer: str | None = None
    windowStart: str | None = None
    windowEnd: str | None = None
    sealedUntil: str | None = None
    frontier: str | None = None
    at: str | None = None

    @staticmethod
    def _get_schema() -> str:
        return SCHEMA_URL
