# SPDX-License-Identifier: Apache-2.0
"""
Run the benchmarks, print the tables of each when it is done, and leave them in ``build/benchmarks.md`` and
``.json``.

``python -m tests.benchmarks [export] [missed] [tables] [fixed] [drain] [capture] [waiting] [fold] [merge]
[snapshot] [reconcile] [consume] [wake] [page] [store] [history] [feeds] [windows] [follow] [mssql]``, or all
of these; ``year`` takes an hour, and 20 GB of disk. ``mssql_cdc`` measures the merge of a peer.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks import (
    capture,
    consume,
    drain,
    export,
    feeds,
    fixed,
    fold,
    follow,
    history,
    merge,
    missed,
    mssql,
    mssql_cdc,
    page,
    reconcile,
    snapshot,
    store,
    tables,
    waiting,
    wake,
    windows,
    year,
)
from tests.benchmarks.figures import surroundings, tell

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "benchmarks.json"
PAGE = OUTPUT.with_suffix(".md")
ALL = {
    "export": export.run,
    "missed": missed.run,
    "tables": tables.run,
    "fixed": fixed.run,
    "drain": drain.run,
    "capture": capture.run,
    "waiting": waiting.run,
    "fold": fold.run,
    "merge": merge.run,
    "snapshot": snapshot.run,
    "reconcile": reconcile.run,
    "consume": consume.run,
    "wake": wake.run,
    "page": page.run,
    "store": store.run,
    "history": history.run,
    "feeds": feeds.run,
    "windows": windows.run,
    "follow": follow.run,
    "mssql": mssql.run,
}
BY_HAND = {"year": year.run, "mssql_cdc": mssql_cdc.run}


def main(names: Sequence[str]) -> int:
    """Run some, and return the exit status."""
    known = ALL | BY_HAND
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    chapters = []
    OUTPUT.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in names or ALL:
            tell(name)
            chapters.append(known[name](Path(folder)))
            print(chapters[-1].text, flush=True)
            # After each, so that one that fails leaves those before it.
            OUTPUT.write_text(json.dumps([asdict(chapter) for chapter in chapters], indent=2) + "\n")
            PAGE.write_text(
                "\n".join(["# Benchmarks", "", surroundings(), "", *(each.text for each in chapters)])
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
