# SPDX-License-Identifier: Apache-2.0
"""
Events as JSON texts, identical to the exports' shapes: for handlers not written in Python.

A leaf module: it imports Arrow.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_changefeed.capture.rows import object_texts
from airflow_changefeed.capture.shapes import shaped_batch
from airflow_changefeed.consumers.event import FeedEvent
from airflow_changefeed.core.export_plan import Shape


def image_texts(event: FeedEvent) -> tuple[str | None, str | None]:
    """Return the old and new row of a capture's event, as in the envelope shape."""
    batch = shaped_batch(_row(event), Shape.ENVELOPE, feed=event.feed)
    old, new = (batch.column(name)[0].as_py() for name in ("old", "new"))
    return old, new


def row_text(event: FeedEvent, columns: frozenset[str]) -> str:
    """
    Return the row of a plain feed's event as a JSON object.

    :param columns: of the event table; any other column is the second column of one of them (ADR 0006).
    """
    batch = _row(event)
    fields = [field for field in batch.schema if field.name in event.page.columns.fields]
    row = pa.StructArray.from_arrays([batch.column(field.name) for field in fields], fields=fields)
    text: str = object_texts(row, columns, np.zeros(1, dtype=np.int64))[0].as_py()
    return text


def _row(event: FeedEvent) -> pa.RecordBatch:
    return event.page.batch.slice(event.position, 1)
