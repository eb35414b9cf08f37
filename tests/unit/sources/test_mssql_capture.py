# SPDX-License-Identifier: Apache-2.0
"""What the server says when it cannot make a capture."""

from __future__ import annotations

import mssql_python
import pytest

from airflow_changefeed.exceptions import FeedSetupError, PermissionDeniedError
from airflow_changefeed.sources.mssql.capture.control import server_refusals
from airflow_changefeed.sources.mssql.connection.errors import name_error


def refused(said: str) -> mssql_python.ProgrammingError:
    """Return an error of the driver."""
    return mssql_python.ProgrammingError("Syntax error", f"[Microsoft][SQL Server]{said}")


def test_what_has_no_name_of_ours_is_a_refusal_of_the_capture() -> None:
    """An expression that the server does not take, or rows that are too wide for it."""
    with (
        pytest.raises(FeedSetupError, match=r"'dbo\.t_changes'.*nothing was changed.*too wide") as caught,
        server_refusals("dbo.t_changes"),
    ):
        raise refused("the row is too wide")
    assert caught.value.capture == "dbo.t_changes"


def test_what_has_a_name_keeps_it() -> None:
    """The connection gives it that name, with its own remedy."""
    denied = refused("The CREATE TABLE permission was denied in database 'x'.")
    assert isinstance(name_error(denied), PermissionDeniedError)
    with pytest.raises(mssql_python.ProgrammingError), server_refusals("dbo.t_changes"):
        raise denied
