# SPDX-License-Identifier: Apache-2.0
"""Open the UI and stay until Ctrl-C: ``python -m tests.system.ui --port 8080``."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tests.system.processes import HomeError, signals_raise
from tests.system.ui.port import parse_port
from tests.system.ui.run import FOLDER, Ui


def main() -> int:
    """Return the exit code: 0 after Ctrl-C in an open UI, 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="make ui", description=__doc__)
    parser.add_argument("--port", default="8080")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where all of it lies")
    arguments = parser.parse_args()
    signals_raise()  # SIGTERM and a closed terminal end the load, too
    try:
        Ui(arguments.folder, parse_port(arguments.port)).run()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except HomeError as error:
        print(f"make ui: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
