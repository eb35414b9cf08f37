# SPDX-License-Identifier: Apache-2.0
"""
Break the package, one break at a time in a copy of the project, and see that the tests notice each.

``python -m tests.mutation`` takes all breaks that need no server, ``--server`` those that need the one that
``CHANGEFEED_TEST_MSSQL`` names, ``--only NAME`` a single one. It first runs the same tests without a break.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutation.run import SERVER, copy_project, failure_without_a_break, try_break
from tests.mutation.table import BREAKS


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each break, and return 1 if one was not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="a break; may be given again")
    parser.add_argument("--server", action="store_true", help="the breaks that need a server")
    options = parser.parse_args(arguments)
    unknown = {*(options.only or ())} - {one.name for one in BREAKS}
    if unknown:
        parser.error(f"no break is named {', '.join(sorted(unknown))}")
    chosen = [
        one
        for one in BREAKS
        if (one.name in options.only if options.only else one.needs_server is options.server)
    ]
    if any(one.needs_server for one in chosen) and not os.environ.get(SERVER):
        parser.error(
            f"breaks of T-SQL need a server; name one by {SERVER} (docs/how-to/install-on-sql-server.md)"
        )
    with tempfile.TemporaryDirectory(prefix="changefeed-mutants-") as folder:
        project = copy_project(Path(folder) / "project")
        problem = failure_without_a_break(project, chosen)
        if problem:
            print(f"Without a break the tests must pass, and they do not:\n{problem}")
            return 1
        survivors = 0
        for one in chosen:
            begun = time.monotonic()
            is_noticed, told = try_break(project, one)
            survivors += not is_noticed
            word = "noticed" if is_noticed else "SURVIVED"
            print(f"{word:9}{time.monotonic() - begun:6.1f} s  {one.promise}: {one.name}\n{told}", flush=True)
    print(f"{len(chosen)} breaks, {survivors} not noticed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
