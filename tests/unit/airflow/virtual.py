# SPDX-License-Identifier: Apache-2.0
"""A loop whose clock jumps to whatever comes next, and Airflow's own runner of triggers in it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from unittest.mock import patch

from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.triggers.base import BaseTrigger

Result = TypeVar("Result")

#: Seconds of this world that threads get before they are looked at again.
_GRACE = 0.001


class _JumpingSelector(selectors.DefaultSelector):
    now = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.at_work: set[Future[Any]] = set()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for files and threads; where nobody works and there is a time to wait for, let it come."""
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        is_at_work = any(not work.done() for work in self.at_work)
        ready = super().select(_GRACE if is_at_work else 0)
        if not ready and not is_at_work:
            self.at_work.clear()
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop in which nobody waits."""

    def __init__(self) -> None:
        self.jumping = _JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        """Return the loop's own time, seconds from 0."""
        return self.jumping.now


def run(coroutine: Coroutine[Any, Any, Result], loop: VirtualLoop | None = None) -> Result:
    """Run a coroutine in a virtual loop, whose clock stands still while threads work."""
    loop = loop or VirtualLoop()
    submit, at_work = ThreadPoolExecutor.submit, loop.jumping.at_work

    def submitted(executor: ThreadPoolExecutor, *args: Any, **options: Any) -> Future[Any]:
        work = submit(executor, *args, **options)
        at_work.add(work)
        return work

    try:
        with patch.object(ThreadPoolExecutor, "submit", submitted):
            return loop.run_until_complete(coroutine)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class Triggerer:
    """Airflow's runner of triggers, which shares their streams, without the process around it."""

    def __init__(self) -> None:
        self.runner = TriggerRunner()
        self.tasks: dict[int, asyncio.Task[None]] = {}

    def start(self, trigger: BaseTrigger) -> int:
        """Run a trigger; return its number."""
        number = len(self.tasks)
        trigger.trigger_id = number
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
        fired = [(entry.trigger_id, entry.event.payload) for entry in self.runner.events]
        assert len(fired) == len(dict(fired))
        return dict(fired)

    @property
    def streams(self) -> int:
        """How many streams are shared at this moment."""
        return len(self.runner._shared_streams._groups)
