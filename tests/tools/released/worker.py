# SPDX-License-Identifier: Apache-2.0
"""
A worker that exports hours in any order until all are done, of whichever version its process imports.

``python -m tests.tools.released.worker ROOT FORMAT FIRST LAST SEED``; Airflow's home comes from the
environment. It may be killed at any time, and started again.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.tools.released.place import Place

#: Tries of a window, as a task with retries has them; other workers are at the same windows.
TRIES = 60


def main(arguments: Sequence[str]) -> int:
    """Export all hours; 1 with the last error if one cannot be exported."""
    root, name, first, last, seed = arguments
    place = Place(Path(root))
    os.environ |= place.connections()
    import airflow_changefeed
    from airflow_changefeed.exceptions import TransientError
    from tests.tools.released.scenario import export_hours

    print(airflow_changefeed.__file__, flush=True)
    order = list(range(int(first), int(last)))
    chance = random.Random(int(seed))
    chance.shuffle(order)
    for hour in order:
        for left in reversed(range(TRIES)):
            try:
                export_hours(place, name, hour, hour + 1, run=f"hour {hour}")
                break
            except TransientError:
                if not left:
                    raise
                time.sleep(chance.random())
        print(hour, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
