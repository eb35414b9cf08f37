# SPDX-License-Identifier: Apache-2.0
"""Programs that use a database side by side, as threads."""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod

import mssql_python

from tests.integration.mssql.server import Client, Database

#: Some servers replace a procedure by dropping it; who calls it at that moment tries again.
_REPLACED = re.compile(
    "cache lookup failed|could not find stored procedure|does not exist|concurrently", re.IGNORECASE
)


class Participant(threading.Thread, ABC):
    """A program that repeats its step until it is stopped; readers do when there are new events."""

    def __init__(self, database: Database, name: str, number: int) -> None:
        super().__init__(name=name, daemon=True)
        self.database, self.number = database, number
        self.ending = threading.Event()
        self.progress = threading.Condition()
        self.steps = 0
        self.failures: list[str] = []
        #: Those who have something to look at after each step of this one.
        self.followers: list[Participant] = []
        #: How often it may work before it waits.
        self.new_events = threading.Semaphore(0)

    def run(self) -> None:
        """Work."""
        try:
            with self.database.client() as client:
                while not self.is_done():
                    try:
                        self.step(client)
                    except mssql_python.Error as error:
                        if not _REPLACED.search(str(error)):
                            raise
                        client.results("if @@trancount > 0 rollback transaction")
                        continue
                    for follower in self.followers:
                        follower.new_events.release()
                    with self.progress:
                        self.steps += 1
                        self.progress.notify_all()
        except Exception as error:
            self.failures.append(f"{self.name}: {error}")
            with self.progress:
                self.progress.notify_all()

    def is_done(self) -> bool:
        """Whether to stop before the next step."""
        return self.ending.is_set()

    @abstractmethod
    def step(self, client: Client) -> None:
        """Do one unit of work."""

    def await_steps(self, goal: int) -> None:
        """Wait until it has done so many steps in all, or failed."""
        with self.progress:
            self.progress.wait_for(lambda: self.steps >= goal or self.failures, timeout=120)
            assert self.steps >= goal, self.failures or f"{self.name} hangs"
