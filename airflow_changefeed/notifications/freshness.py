# SPDX-License-Identifier: Apache-2.0
"""Send how old consumers' frontiers are, and why, when a task or DAG fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from airflow_changefeed.connections.connection import without_secrets
from airflow_changefeed.core.values import read_values
from airflow_changefeed.exceptions import ChangefeedError, InvalidArgumentError
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.tasks.arguments import MAX_AGE, KeepsNames

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow.sdk import Context


class ChangefeedFreshnessNotifier(KeepsNames, BaseNotifier):
    """
    Let another notifier send how old consumers' frontiers are, with the reasons that ``doctor`` finds.

    The other notifier's templates have the text as ``{{ freshness }}``; a function finds it in the context.
    If the database does not answer, the text is that error.

    :param notifier: any notifier, for example Slack's, or a function that takes the context.
    :param max_age: how old a frontier may be, a ``timedelta``, seconds, or a text such as ``2h``; the text
        has reasons for older frontiers.
    :param feed: name or pattern of feeds, or a list of them; None for all that have consumers. (templated)
    :param consumer: name of the consumer; None for all. (templated)
    :param changefeed_conn_id: Airflow connection of the feeds' database. (templated)
    """

    template_fields: Sequence[str] = ("feed", "consumer", "changefeed_conn_id")

    def __init__(
        self,
        *,
        notifier: Callable[[Any], object],
        max_age: timedelta | float | str,
        feed: str | Sequence[str] | None = None,
        consumer: str | None = None,
        changefeed_conn_id: str = ChangefeedHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.notifier = notifier
        self.max_age = max_age
        self.feed = feed
        self.consumer = consumer
        self.changefeed_conn_id = changefeed_conn_id
        given: object = notifier
        problems = [] if callable(given) else [f"notifier must be a notifier or a function, not {given!r}"]
        problems += read_values(self, {"max_age": MAX_AGE})
        InvalidArgumentError.collect(type(self).__name__, problems)

    def notify(self, context: Context) -> None:
        """Send the text."""
        try:
            hook = ChangefeedHook(self.changefeed_conn_id)
            text = hook.freshness(self.max_age, feed=self.feed, consumer=self.consumer).text
        except ChangefeedError as error:
            text = f"{type(error).__name__}: {error}"
        self.notifier({**context, "freshness": without_secrets(text)})
