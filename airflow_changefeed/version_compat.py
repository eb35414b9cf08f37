# SPDX-License-Identifier: Apache-2.0
"""
What Airflow's minors have in different places or not at all, from 3.0.6 on.

Nothing else in the package asks for Airflow's version. Only the Airflow faces import this. The provider
``common.compat`` that was released with Airflow 3.0.6 has none of these names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow import __version__ as AIRFLOW_VERSION
from packaging.version import Version

_MINOR = Version(AIRFLOW_VERSION).release[:2]
#: The page: external views, and a user who is known by a cookie.
AIRFLOW_V_3_1_PLUS = _MINOR >= (3, 1)
#: Commands of providers, and partitioned runs.
AIRFLOW_V_3_2_PLUS = _MINOR >= (3, 2)
#: Shared streams of triggers, ``Variable.keys``, and a ``Variable.set`` that raises what goes wrong.
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

__all__ = [
    "AIRFLOW_VERSION",
    "AIRFLOW_V_3_1_PLUS",
    "AIRFLOW_V_3_2_PLUS",
    "AIRFLOW_V_3_3_PLUS",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "BaseHook",
    "DownstreamTasksSkipped",
    "TaskDeferralError",
    "TaskDeferred",
    "coerce_datetime",
    "conf",
    "redact",
]
