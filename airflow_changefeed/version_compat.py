# SPDX-License-Identifier: Apache-2.0
"""
What Airflow's minors have in different places or not at all, from 3.0.6 on.

Nothing else in the package asks for Airflow's version. Only the Airflow faces import this. The provider
``common.compat`` that was released with Airflow 3.0.6 has none of these names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow import __version__
from packaging.version import Version

_MINOR = Version(__version__).release[:2]
#: Views for the page, and users who are known by a cookie; decorated operators do not need ``xcom_push``.
AIRFLOW_V_3_1_PLUS = _MINOR >= (3, 1)
#: Partitioned runs; any values in the extra of an alias's event.
AIRFLOW_V_3_2_PLUS = _MINOR >= (3, 2)
#: Changes of Variables that fail in a task raise; dates of partitions are wall times.
AIRFLOW_V_3_3_PLUS = _MINOR >= (3, 3)

if TYPE_CHECKING or AIRFLOW_V_3_1_PLUS:
    from airflow.sdk import BaseHook
    from airflow.sdk.log import redact  # type: ignore[attr-defined] # not in its stub
    from airflow.sdk.timezone import coerce_datetime
else:
    from airflow.hooks.base import BaseHook
    from airflow.sdk.execution_time.secrets_masker import redact
    from airflow.utils.timezone import coerce_datetime

if TYPE_CHECKING or AIRFLOW_V_3_2_PLUS:
    from airflow.sdk import BaseBranchOperator
    from airflow.sdk.configuration import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        DownstreamTasksSkipped,
        TaskDeferralError,
        TaskDeferred,
    )
    from airflow.sdk.observability.stats import Stats
else:
    from airflow.configuration import conf
    from airflow.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        DownstreamTasksSkipped,
        TaskDeferralError,
        TaskDeferred,
    )
    from airflow.providers.standard.operators.branch import BaseBranchOperator
    from airflow.stats import Stats

__all__ = [
    "AIRFLOW_V_3_1_PLUS",
    "AIRFLOW_V_3_2_PLUS",
    "AIRFLOW_V_3_3_PLUS",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "BaseBranchOperator",
    "BaseHook",
    "DownstreamTasksSkipped",
    "Stats",
    "TaskDeferralError",
    "TaskDeferred",
    "coerce_datetime",
    "conf",
    "redact",
]
