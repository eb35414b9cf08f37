# SPDX-License-Identifier: Apache-2.0
"""Which connections a user may know of on the page, and how their databases are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, TypeVar

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import Depends, HTTPException, Request

from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.plugins.changefeed_access import may_see_connection, readable_dags
from airflow_changefeed.plugins.changefeed_threads import ask
from airflow_changefeed.plugins.changefeed_uses import Use, configured, find_uses
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.base import FeedSource

T = TypeVar("T")

#: Seconds to wait for a lock: a person waits, too.
LOCK_TIMEOUT = 5.0
#: Seconds for an answer.
ANSWER_TIMEOUT = 10.0
#: Seconds in which a server must let the page in, at most.
LOGIN_TIMEOUT = 8
_NO_CONNECTION = (
    "no connection {!r} to show: name it in a task of a DAG that you may see, or in the option "
    "page_connections of Airflow's section [changefeed]"
)


@contextmanager
def opened(conn_id: str) -> Iterator[FeedSource]:
    """Open a connection's feeds for a question."""
    description = ChangefeedHook(conn_id, lock_timeout=LOCK_TIMEOUT).describe()
    if description["type"] == "mssql":
        # Sooner than the page gives up, so that it can say why.
        options = description.get("driver_options", {})
        seconds = min(LOGIN_TIMEOUT, options.get("login_timeout", LOGIN_TIMEOUT))
        description["driver_options"] = {**options, "login_timeout": seconds}
    source = open_source(description)
    try:
        yield source
    finally:
        source.close()


async def ask_source(conn_id: str, question: Callable[[FeedSource], T]) -> T:
    """Ask something of a connection's feeds, in a thread and for a limited time."""

    def asking() -> T:
        with opened(conn_id) as source:
            return question(source)

    return await ask(conn_id, asking, timeout=ANSWER_TIMEOUT)


def own_uses(user: GetUserDep) -> list[Use]:
    """Return the tasks, in DAGs that the user may see, that name a connection."""
    return find_uses(readable_dags(user))


Uses = Annotated[list[Use], Depends(own_uses)]


def visible(request: Request, conn_id: str, uses: Uses, user: GetUserDep) -> str:
    """
    Let only those connections on that the user may know of, and note whether he may see what is wrong.

    :raises HTTPException: 404 for others, be they there or not.
    """
    if conn_id not in {*(use.conn_id for use in uses), *configured()}:
        raise HTTPException(404, _NO_CONNECTION.format(conn_id))
    # An error's words name servers, logins and paths.
    request.state.is_told = may_see_connection(user, conn_id)
    return conn_id


ConnId = Annotated[str, Depends(visible)]
