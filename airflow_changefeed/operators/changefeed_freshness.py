# SPDX-License-Identifier: Apache-2.0
"""Fail, or branch, when a consumer's frontier is older than it may be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.export.feeds import parse_feeds
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.hooks.changefeed_arguments import (
    MAX_AGE,
    check_arguments,
    check_consumer_name,
    check_name,
)
from airflow_changefeed.hooks.changefeed_context import reports_errors
from airflow_changefeed.hooks.changefeed_fields import NamesConnections
from airflow_changefeed.hooks.changefeed_secrets import clean_values
from airflow_changefeed.observability import metrics
from airflow_changefeed.version_compat import BaseBranchOperator

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow.sdk import Context

    from airflow_changefeed.doctor.freshness import Freshness

#: Key of the branching operator's XCom with the consumers; its result is the branch.
CONSUMERS_KEY = "consumers"


def _check_feeds(feed: object) -> None:
    if feed is not None and not parse_feeds("feed", feed):
        raise InvalidArgumentError("feed is empty: name some, or None for all")


class ChangefeedFreshnessOperator(NamesConnections, BaseOperator):
    """
    Fail when a consumer's frontier is older than ``max_age``, with the reasons that ``doctor`` finds.

    A consumer that is late fails the task at once, and the error names each with age and reason; a database
    that does not answer is transient. A feed that cannot be read does not hide the others.

    The result (XCom), also of a task that fails, is a list with ``{"feed", "consumer", "complete_until",
    "age_seconds", "is_fresh", "reasons", "warnings", "files_checked_at", "error"}`` for each consumer, and
    for each feed that could not be read; a reason or warning is ``{"code", "where", "what", "remedy"}``.

    :param max_age: how old a frontier may be, a ``timedelta``, seconds, or a text such as ``2h``: for an
        export longer than its schedule's interval and the time that a run takes.
    :param feed: name or pattern of feeds, or a list of them; None for all that have consumers. (templated)
    :param consumer: name of the consumer; None for all. (templated)
    :param changefeed_conn_id: Airflow connection of the feeds' database. (templated)
    """

    template_fields: Sequence[str] = ("feed", "consumer", "changefeed_conn_id")

    def __init__(
        self,
        *,
        max_age: timedelta | float | str,
        feed: str | Sequence[str] | None = None,
        consumer: str | None = None,
        changefeed_conn_id: str = ChangefeedHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_age = max_age
        self.feed = feed
        self.consumer = consumer
        self.changefeed_conn_id = changefeed_conn_id
        self._check()

    def _check(self) -> None:
        consumer = [] if self.consumer is None else [(check_consumer_name, self.consumer)]
        check_arguments(
            self,
            (_check_feeds, self.feed),
            *consumer,
            (check_name, "changefeed_conn_id", self.changefeed_conn_id),
            values={"max_age": MAX_AGE},
        )

    def _freshness(self, context: Context, key: str) -> Freshness:
        """Check, log each consumer, and push the rows, also if the task fails."""
        self._check()
        hook = ChangefeedHook(self.changefeed_conn_id)
        found = hook.freshness(self.max_age, feed=self.feed, consumer=self.consumer)
        self.log.info("%s", found.text)
        metrics.watched(found)
        context["ti"].xcom_push(key=key, value=clean_values(found.to_dicts()))
        return found

    @reports_errors
    def execute(self, context: Context) -> Any:
        """Check."""
        found = self._freshness(context, "return_value")
        found.check()
        return found.to_dicts()


class ChangefeedFreshnessBranchOperator(ChangefeedFreshnessOperator, BaseBranchOperator):
    """
    Follow one branch if all consumers' frontiers are at most ``max_age`` old, and another one otherwise.

    Takes the arguments of :class:`ChangefeedFreshnessOperator`. If no consumer is late, but a feed cannot be
    read, the task fails. The result (XCom) is the branch; the key ``consumers`` has the rows.

    :param follow_task_ids_if_fresh: tasks or task groups to run if no consumer is late.
    :param follow_task_ids_if_stale: tasks or task groups to run if one is.
    """

    def __init__(
        self,
        *,
        max_age: timedelta | float | str,
        follow_task_ids_if_fresh: str | list[str],
        follow_task_ids_if_stale: str | list[str],
        feed: str | Sequence[str] | None = None,
        consumer: str | None = None,
        changefeed_conn_id: str = ChangefeedHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            max_age=max_age, feed=feed, consumer=consumer, changefeed_conn_id=changefeed_conn_id, **kwargs
        )
        self.follow_task_ids_if_fresh = follow_task_ids_if_fresh
        self.follow_task_ids_if_stale = follow_task_ids_if_stale

    def execute(self, context: Context) -> Any:
        """Follow a branch."""
        return BaseBranchOperator.execute(self, context)

    @reports_errors
    def choose_branch(self, context: Context) -> str | Iterable[str]:
        """Return the tasks to run."""
        found = self._freshness(context, CONSUMERS_KEY)
        if found.late:
            return self.follow_task_ids_if_stale
        found.check()
        return self.follow_task_ids_if_fresh
