# SPDX-License-Identifier: Apache-2.0
"""Run the benchmarks, print their figures and leave them in ``build/benchmarks.json``."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks import drain

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "benchmarks.json"


def main() -> None:
    """Run all of them on every engine that the environment names."""
    with tempfile.TemporaryDirectory() as folder:
        figures = drain.run(Path(folder))
    print(f"{'what':34} {'engine':8} {'rows':>9} {'rows/s':>9} {'of floor':>9} {'peak MB':>8}")
    for figure in figures:
        print(
            f"{figure.what:34} {figure.engine:8} {figure.rows:9,} {figure.rows_per_second:9,.0f} "
            f"{figure.ratio:9.2f} {figure.peak_megabytes:8.0f}"
        )
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")


if __name__ == "__main__":
    main()
