# SPDX-License-Identifier: Apache-2.0
"""
The process that holds .NET: jobs come as lines of JSON, results go back as lines of JSON.

A job is an object, compiled to a result, or the text of a batch, whose steps go back as a list.

``python -m tests.tools.tsql.worker FOLDER_OF_ASSEMBLIES``; started by :mod:`tests.tools.tsql.checker` only.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.tools.tsql.findings import Job


def main(folder: Path) -> None:
    """Answer jobs until the input ends."""
    # What .NET prints goes to the errors; the answers have the output for themselves.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    from tests.tools.tsql import tree
    from tests.tools.tsql.compiler import compile_job
    from tests.tools.tsql.steps import lock_steps

    tree.load(folder)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = lock_steps(asked) if isinstance(asked, str) else compile_job(Job.from_json(asked)).to_json()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
