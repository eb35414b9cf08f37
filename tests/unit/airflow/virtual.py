# SPDX-License-Identifier: Apache-2.0
"""A loop whose clock jumps to whatever comes next, and Airflow's own runner of triggers in it."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Coroutine, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from unittest.mock import patch
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.triggers.base import BaseTrigger

from airflow_changefeed.consumers import poller as poller_module
from airflow_changefeed.consumers.poller import Poller

Result = TypeVar("Result")

#: Seconds of this world that threads get before they are looked at again.
_GRACE = 0.001


class _JumpingSelector(selectors.DefaultSelector):
    now = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.at_work: set[Future[Any]] = set()
        #: With the time until which each pauses, if for a time.
        self.pollers: WeakKeyDictionary[Poller | None, float | None] = WeakKeyDictionary()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for files and threads; where nobody works and there is a time to wait for, let it come."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        pauses = [until for poller, until in self.pollers.items() if poller._thread and until is not None]
        is_at_work = any(not work.done() for work in self.at_work) or any(map(_is_polling, self.pollers))
        times = [*pauses, *([] if timeout is None else [self.now + timeout])]
        ready = super().select(_GRACE if is_at_work else 0 if times else None)
        if not ready and not is_at_work:
            self.at_work.clear()
            self.now = max(self.now, min(times))
            for poller, until in self.pollers.items():
                if until is not None and until <= self.now:
                    with poller._changed:
                        poller._changed.notify_all()
        return ready


def _is_polling(poller: Poller) -> bool:
    """Whether its thread runs, or was told to."""
    return poller._thread is not None and not poller._changed._waiters  # type: ignore[attr-defined]


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop in which nobody waits."""

    def __init__(self) -> None:
        self.jumping = _JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        """Return the loop's own time, seconds from 0."""
        return self.jumping.now


def run(coroutine: Coroutine[Any, Any, Result], loop: VirtualLoop | None = None) -> Result:
    """Run a coroutine in a virtual loop, whose clock stands still while threads and pollers work."""
    loop = loop or VirtualLoop()
    submit, at_work = ThreadPoolExecutor.submit, loop.jumping.at_work

    def submitted(executor: ThreadPoolExecutor, *args: Any, **options: Any) -> Future[Any]:
        work = submit(executor, *args, **options)
        at_work.add(work)
        return work

    begin, pollers = Poller.__init__, loop.jumping.pollers

    def begun(poller: Poller, *arguments: Any) -> None:
        # Weak, as a poller shall end with its last watch.
        paused = ref(poller)

        def pause(condition: threading.Condition, seconds: float | None) -> None:
            # Rounded up, as a pause never ends early.
            pollers[paused()] = None if seconds is None else loop.time() + seconds + 1e-6
            condition.wait()

        pollers[poller] = None
        begin(poller, *arguments, clock=loop.time, pause=pause)

    try:
        with (
            patch.object(ThreadPoolExecutor, "submit", submitted),
            patch.object(Poller, "__init__", begun),
            patch.object(poller_module, "_POLLERS", WeakValueDictionary()),
        ):
            return loop.run_until_complete(coroutine)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _values(entry: Any) -> tuple[Any, ...]:
    """Return the number of a trigger and its event, which are a pair before Airflow 3.3."""
    return entry if type(entry) is tuple else (entry.trigger_id, entry.event)


class Triggerer:
    """Airflow's runner of triggers, without the process around it."""

    def __init__(self) -> None:
        self.runner = TriggerRunner()
        self.tasks: dict[int, asyncio.Task[None]] = {}

    def start(self, trigger: BaseTrigger) -> int:
        """Run a trigger; return its number."""
        number = len(self.tasks)
        trigger.trigger_id = number
        # Before 3.3 the runner takes it from the database for each trigger.
        vars(trigger)["timeout_after"] = None
        self.runner.triggers[number] = {"name": f"trigger {number}", "events": 0}
        self.tasks[number] = asyncio.create_task(self.runner.run_trigger(number, trigger))
        return number

    async def stop(self, number: int) -> None:
        """Cancel a trigger."""
        self.tasks[number].cancel()
        await asyncio.wait([self.tasks[number]])

    async def end(self) -> None:
        """Wait until all triggers have ended."""
        await asyncio.wait(self.tasks.values())

    @property
    def payloads(self) -> dict[int, Any]:
        """What the triggers have fired, each once, by their numbers."""
        fired = [(number, event.payload) for number, event in map(_values, self.runner.events)]
        assert len(fired) == len(dict(fired))
        return dict(fired)

    @property
    def keys(self) -> list[Hashable]:
        """What the pollers that are at work at this moment are shared by."""
        return [key for key, poller in poller_module._POLLERS.items() if poller._watches]
