# SPDX-License-Identifier: Apache-2.0
"""Wait until a feed has news, or until a window is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.hooks.changefeed_context import (
    airflow_errors,
    check_arguments,
    consumer_problems,
    lock_timeout_problems,
    name_problems,
    parse_shards,
    run_window,
    shard_problems,
    window_problems,
)

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_changefeed.core.feed import Shard
    from airflow_changefeed.export.news import Outlook


class ChangefeedSensor(BaseSensorOperator):
    """
    Succeed when a feed has events beyond a consumer's cursor, or when the run's window has ended.

    A window that has ended is something to export even when nothing happened in it: an idle hour becomes an
    empty unit instead of a task that waits for ever. A run without a window (triggered by an asset, for
    example) waits for news. Nothing is written, and one look serves all shards. The result (XCom) is the map
    of shards with news: ``{shard: {"after": cursor, "head": last event or None, "outbox": whether rows wait
    in the outbox}}``.

    :param feed: name of the feed, the table's. (templated)
    :param consumer: whose cursors count. (templated)
    :param shards: shards to look at; None for all. (templated)
    :param changefeed_conn_id: Airflow connection of the feed's database.
    :param window_start: inclusive, ISO 8601 with a zone; default the run's ``params``, then its data
        interval. (templated)
    :param window_end: exclusive, likewise; by the database's clock. (templated)
    :param skip_without_news: skip what follows when the window has ended without news. A skipped window stays
        unexported and so holds the cursor of a windowed export: use it before exports of batches only.
    :param lock_timeout: seconds to wait for another writer; None takes the connection's.
    """

    template_fields: Sequence[str] = ("feed", "consumer", "window_start", "window_end", "shards")

    def __init__(
        self,
        *,
        feed: str,
        consumer: str,
        shards: Sequence[Shard | str] | None = None,
        changefeed_conn_id: str = ChangefeedHook.default_conn_name,
        window_start: datetime | str | None = None,
        window_end: datetime | str | None = None,
        skip_without_news: bool = False,
        lock_timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.feed = feed
        self.consumer = consumer
        self.shards = shards
        self.changefeed_conn_id = changefeed_conn_id
        self.window_start = window_start
        self.window_end = window_end
        self.skip_without_news = skip_without_news
        self.lock_timeout = lock_timeout
        check_arguments(self, self._problems())

    def _problems(self) -> list[str]:
        """List what is wrong with the arguments, but those that are not rendered yet."""
        return [
            *name_problems("feed", self.feed),
            *consumer_problems(self.consumer),
            *name_problems("changefeed_conn_id", self.changefeed_conn_id),
            *shard_problems(self.shards),
            *window_problems(self.window_start, self.window_end),
            *lock_timeout_problems(self.lock_timeout),
        ]

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        with airflow_errors():
            outlook = self._look(context)
        news = outlook.to_dict()
        if outlook.has_ended and not news:
            self._without_news()
        self.log.info(
            "Feed %s has news for consumer %s in shards %s", self.feed, self.consumer, list(news) or "none"
        )
        return PokeReturnValue(is_done=outlook.is_ready, xcom_value=news)

    def _look(self, context: Context) -> Outlook:
        from airflow_changefeed.export.news import look

        check_arguments(self, self._problems())
        window = run_window(context, self.window_start, self.window_end)
        source = ChangefeedHook(self.changefeed_conn_id, lock_timeout=self.lock_timeout).source()
        return look(
            source, self.feed, self.consumer, parse_shards(self.shards), window.end if window else None
        )

    def _without_news(self) -> None:
        if self.skip_without_news:
            from airflow.sdk.exceptions import AirflowSkipException

            raise AirflowSkipException(f"the window has ended without news in feed {self.feed!r}")
