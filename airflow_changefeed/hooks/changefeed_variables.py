# SPDX-License-Identifier: Apache-2.0
"""Airflow's Variables as the store of cursors, in tasks and outside."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from airflow_changefeed.exceptions import AirflowUnavailableError
from airflow_changefeed.version_compat import AIRFLOW_V_3_3_PLUS

#: What to do if Airflow does not answer.
_IN_TASK = "Retry; if it stays so, check Airflow's API server"
_IN_SERVER = (
    "Run this where Airflow runs, with its configuration (sql_alchemy_conn) and its metadata database; a new "
    "database needs airflow db migrate"
)


class AirflowVariables:
    """
    Airflow's Variables, in tasks and outside; implements
    :class:`~airflow_changefeed.cursors.cursors.VariableStore`.

    In a task, an API that fails for a moment looks like a Variable that does not exist; outside, so does a
    secrets backend that fails. Absence counts only when the API itself or the metadata database confirms it.
    Before Airflow 3.3 a write that fails in a task is only logged, so it is read back.
    """

    def get(self, key: str) -> str | None:
        """
        Return a Variable's text; None only when it certainly does not exist.

        :raises AirflowUnavailableError: Airflow did not answer.
        """
        with named_errors(f"read Airflow Variable {key!r}"):
            get, stored = (
                (_get_in_task, _stored_in_task) if is_in_task() else (_get_in_server, _stored_in_server)
            )
            # Somebody may create it between the two looks, so it is read once more.
            if (value := get(key)) is None and stored(key) is not None and (value := get(key)) is None:
                raise AirflowUnavailableError.of(
                    f"Airflow has Variable {key!r} but did not give its value",
                    "Retry; if it stays so, it was written with another core.fernet_key",
                )
            return value

    def keys(self, prefix: str) -> list[str]:
        """
        Return the names of the Variables that begin so; not in a task.

        :raises AirflowUnavailableError: Airflow did not answer.
        """
        with named_errors(f"list Airflow Variables {prefix!r}"):
            return _prefixed_in_server(prefix)

    def set(self, key: str, value: str) -> None:
        """
        Write a Variable.

        :raises AirflowUnavailableError: Airflow did not take it.
        """
        with named_errors(f"write Airflow Variable {key!r}"):
            description = (
                "Published by airflow_changefeed: where a consumer stands. Edit it, then adopt or publish."
            )
            if is_in_task():
                from airflow.sdk import Variable

                Variable.set(key, value, description=description)
                _confirm(key, value)
            else:
                from airflow.models import Variable as ServerVariable

                ServerVariable.set(key, value, description=description)

    def delete(self, key: str) -> None:
        """
        Remove a Variable; harmless if it does not exist.

        :raises AirflowUnavailableError: Airflow did not answer.
        """
        with named_errors(f"delete Airflow Variable {key!r}"):
            if is_in_task():
                from airflow.sdk import Variable

                Variable.delete(key)
                _confirm(key, None)
            else:
                from airflow.models import Variable as ServerVariable

                ServerVariable.delete(key)


def is_in_task() -> bool:
    """Whether this process reaches Airflow by its API alone: a task, a triggerer or a DAG processor."""
    # As Airflow itself decides; the module is there only in these.
    return (
        getattr(sys.modules.get("airflow.sdk.execution_time.task_runner"), "SUPERVISOR_COMMS", None)
        is not None
    )


def _get_in_task(key: str) -> str | None:
    from airflow.sdk import Variable

    value: str | None = Variable.get(key, default=None)
    return value


def _stored_in_task(key: str) -> str | None:
    """Ask the API alone; unlike ``Variable.get``, raises if it does not answer."""
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse, GetVariable
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    answer: Any = SUPERVISOR_COMMS.send(GetVariable(key=key))
    if isinstance(answer, ErrorResponse):
        if answer.error == ErrorType.VARIABLE_NOT_FOUND:
            return None
        raise AirflowRuntimeError(answer)
    value: str | None = answer.value
    return value


def _confirm(key: str, value: str | None) -> None:
    """Before Airflow 3.3 a task's ``Variable.set`` and ``delete`` only log what goes wrong."""
    if not AIRFLOW_V_3_3_PLUS and _stored_in_task(key) != value:
        raise AirflowUnavailableError.of(f"Airflow did not take the change of Variable {key!r}", "Retry")


def _get_in_server(key: str) -> str | None:
    from airflow.models import Variable as ServerVariable

    value: str | None = ServerVariable.get(key, default_var=None)
    return value


def _stored_in_server(key: str) -> str | None:
    """Ask the metadata database alone; unlike ``Variable.get``, sees nothing else."""
    from airflow.models import Variable as ServerVariable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found: str | None = session.scalar(select(ServerVariable.key).where(ServerVariable.key == key))
        return found


def _prefixed_in_server(prefix: str) -> list[str]:
    from airflow.models import Variable as ServerVariable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = select(ServerVariable.key).where(ServerVariable.key.startswith(prefix, autoescape=True))
        return sorted(session.scalars(found))


@contextlib.contextmanager
def named_errors(doing: str) -> Any:
    """
    Name what could not be done, in place of Airflow's and SQLAlchemy's own errors.

    :raises AirflowUnavailableError: in place of them.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (AirflowRuntimeError, SQLAlchemyError, OSError) as error:
        # The driver's own words, without the statement and SQLAlchemy's address.
        cause = getattr(error, "orig", None) or error
        what = f"could not {doing}: {type(cause).__name__}: {' '.join(str(cause).split()).rstrip('.')}"
        raise AirflowUnavailableError.of(what, _IN_TASK if is_in_task() else _IN_SERVER) from error
