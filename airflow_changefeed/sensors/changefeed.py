# SPDX-License-Identifier: Apache-2.0
"""Wait until a feed has new events, or until a window has ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_changefeed.core.feed import parse_shards, shard_text
from airflow_changefeed.core.values import LOCK_TIMEOUT, format_time, optional, read_value
from airflow_changefeed.exceptions import TransientError
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.tasks.arguments import (
    NamesConnections,
    check_arguments,
    check_consumer_name,
    check_name,
    check_window,
)
from airflow_changefeed.tasks.context import airflow_errors, run_window
from airflow_changefeed.version_compat import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralError,
    conf,
)

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_changefeed.core.feed import Shard
    from airflow_changefeed.triggers.changefeed import ChangefeedTrigger


class ChangefeedSensor(NamesConnections, BaseSensorOperator):
    """
    Succeed when a feed has events beyond a consumer's cursor, or when the run's window has ended.

    A window that has ended must be exported even if it has no events: an idle hour becomes an empty unit
    instead of a task that waits forever. A run without a window (triggered by an asset, for example) waits
    for new events. The sensor writes nothing, and one poll serves all shards. The result (XCom) is the map of
    shards with new events: ``{shard: {"after": cursor, "head": last event or None, "outbox": whether rows
    wait in the outbox}}``.

    :param feed: name of the feed, the table's. (templated)
    :param consumer: name of the consumer, whose cursors count. (templated)
    :param shards: shards to poll; None for all. (templated)
    :param changefeed_conn_id: Airflow connection of the feed's database.
    :param window_start: inclusive, ISO 8601 with a zone; default the run's ``params``, then its data
        interval. (templated)
    :param window_end: exclusive, likewise; by the database's clock. (templated)
    :param skip_without_new_events: skip the tasks that follow if the window has ended without new events. A
        skipped window stays unexported and so holds back the cursor of a windowed export: use this option
        only before exports of batches.
    :param lock_timeout: seconds to wait for another writer; None takes the connection's.
    :param deferrable: after a first poll in the task, wait in the triggerer, which occupies no worker;
        ``mode`` then has no effect. Default: Airflow's option ``[operators] default_deferrable``.
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
        skip_without_new_events: bool = False,
        lock_timeout: float | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.feed = feed
        self.consumer = consumer
        self.shards = shards
        self.changefeed_conn_id = changefeed_conn_id
        self.window_start = window_start
        self.window_end = window_end
        self.skip_without_new_events = skip_without_new_events
        self.lock_timeout = lock_timeout
        self.deferrable = deferrable
        self._check()

    def _check(self) -> None:
        check_arguments(
            self,
            (check_name, "feed", self.feed),
            (check_consumer_name, self.consumer),
            (check_name, "changefeed_conn_id", self.changefeed_conn_id),
            (read_value, "shards", self.shards, parse_shards),
            (check_window, self.window_start, self.window_end),
            values={"lock_timeout": optional(LOCK_TIMEOUT)},
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Poll once; if deferrable and there is nothing yet, let the triggerer wait."""
        from airflow_changefeed.cursors.new_events import poll

        try:
            with airflow_errors(self.changefeed_conn_id):
                self._check()
                window = run_window(context, self.window_start, self.window_end)
                shards = parse_shards(self.shards)
                source = ChangefeedHook(self.changefeed_conn_id, lock_timeout=self.lock_timeout).source()
                found = poll(source, self.feed, self.consumer, shards, window.end if window else None)
            answer = self._answer(found.to_dict(), found.has_ended)
        except TransientError as error:
            if not (self.deferrable and self.silent_fail):
                raise
            # The triggerer continues after errors too; here the task would occupy a worker.
            self.log.error("Sensor poke failed: %s: %s", type(error).__name__, error)
            answer = PokeReturnValue(is_done=False)
        if self.deferrable and not answer:
            self.defer(
                trigger=self._trigger(context),
                method_name=self.execute_complete.__name__,
                timeout=timedelta(seconds=self.timeout),
            )
        return answer

    def execute_complete(self, context: Context, event: object = None) -> dict[str, Any]:
        """Turn the trigger's event into the result of the task, or into the trigger's error."""
        from airflow_changefeed.triggers.changefeed import read_event

        try:
            with airflow_errors(self.changefeed_conn_id):
                new_events, has_ended = read_event(event)
        except TransientError as error:
            if self.never_fail:
                raise AirflowSkipException("Skipping due to never_fail is set to True.") from error
            raise
        self._answer(new_events, has_ended)
        return new_events

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """
        Go on when the triggerer is done with the task.

        Before it fails for its timeout it polls once more, as it does when it waits in a worker: the
        triggerer may have been down, or slept through the end of the window.
        """
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (AirflowException, TaskDeferralError) as error:
            # Of soft_fail and never_fail a skip is made, from the timeout.
            if isinstance(error, AirflowSensorTimeout) or isinstance(error.__cause__, AirflowSensorTimeout):
                # Here, and not in the triggerer again.
                self.deferrable = False
                try:
                    answer = self.poke(context)
                except (AirflowFailException, TransientError):
                    self.log.warning("The last poll before the timeout failed", exc_info=True)
                else:
                    if answer:
                        return answer.xcom_value
            if (self.soft_fail or self.never_fail) and not isinstance(error, AirflowSkipException):
                # Airflow before 3.1.8 leaves out never_fail, and the timeout.
                option = "soft_fail" if self.soft_fail else "never_fail"
                raise AirflowSkipException(f"Skipping due to {option} is set to True.") from error
            raise

    def _answer(self, new_events: dict[str, Any], has_ended: bool) -> PokeReturnValue:
        if has_ended and not new_events and self.skip_without_new_events:
            raise AirflowSkipException(f"the window has ended without new events in feed {self.feed!r}")
        found, more = "new events", f" in shards {', '.join(new_events)}"
        if not new_events:
            found, more = "no new events", ", and the window has ended" if has_ended else " yet"
        self.log.info("Feed %s has %s for consumer %s%s", self.feed, found, self.consumer, more)
        return PokeReturnValue(is_done=bool(new_events) or has_ended, xcom_value=new_events)

    def _trigger(self, context: Context) -> ChangefeedTrigger:
        from airflow_changefeed.triggers.changefeed import MOST_FAILURES, ChangefeedTrigger

        window = run_window(context, self.window_start, self.window_end)
        shards = parse_shards(self.shards)
        return ChangefeedTrigger(
            feed=self.feed,
            consumer=self.consumer,
            shards=[shard_text(shard) for shard in shards] if shards is not None else None,
            changefeed_conn_id=self.changefeed_conn_id,
            window_end=format_time(window.end) if window else None,
            lock_timeout=self.lock_timeout,
            poke_interval=self.poke_interval,
            exponential_backoff=self.exponential_backoff,
            max_wait=self.max_wait.total_seconds() if self.max_wait else None,
            most_failures=None if self.silent_fail else MOST_FAILURES,
        )
