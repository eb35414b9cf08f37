# SPDX-License-Identifier: Apache-2.0
"""Our errors on their way through Spark, which hands on nothing of a Python exception but its text."""

from __future__ import annotations

import re

from airflow_changefeed import exceptions
from airflow_changefeed.exceptions import ChangefeedError, named_error

# As a traceback ends; the package's messages have one line.
_NAMED = re.compile(rf"{re.escape(exceptions.__name__)}\.(\w+): (.*)")


def changefeed_error(error: BaseException) -> ChangefeedError | None:
    """
    Find our error in one that a frame of the data source raised.

    :return: the same class with the same message, without its facts; None where the error is not ours.
    """
    if isinstance(error, ChangefeedError):
        return error
    for name, message in reversed(_NAMED.findall(str(error))):
        if found := named_error(name, message.strip()):
            return found
    return None
