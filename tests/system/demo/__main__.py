# SPDX-License-Identifier: Apache-2.0
"""Run the demo: ``python -m tests.system.demo``."""

from __future__ import annotations

import sys

from tests.system.demo.run import Demo

if __name__ == "__main__":
    sys.exit(0 if Demo().run() else 1)
