# SPDX-License-Identifier: Apache-2.0
"""What a Spark job that folds gets; without secrets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_changefeed.core.codec import Document
from airflow_changefeed.folding.choice import NEWEST


@dataclass(frozen=True)
class FoldTask(Document):
    """
    A state to write.

    :param feed: the capture.
    :param path: root of its export.
    :param output: root of the states.
    :param at: feed time, exclusive.
    :param table: None if the capture has only one.
    :param attempt: see :func:`~airflow_changefeed.folding.states.new_attempt`.
    :param run: name of the run that folds.
    :param base: see :class:`~airflow_changefeed.folding.bases.BaseChoice`.
    """

    KIND = "changefeed fold"

    feed: str
    path: str
    output: str
    at: datetime
    table: str | None
    attempt: str
    run: str
    base: str = NEWEST
