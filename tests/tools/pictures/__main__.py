# SPDX-License-Identifier: Apache-2.0
"""
Draw the diagrams of the documentation, and the plots of its benchmarks, into ``docs/images``.

``python -m tests.tools.pictures``, in the environment of ``make docs``. With ``--check`` no file is written,
and the exit status is 1 if a picture differs from its source. ``--plots PAGE FOLDER`` draws only the plots of
another page's tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.tools.pictures.chapters import NoFiguresError, read_chapters
from tests.tools.pictures.diagrams import DIAGRAMS
from tests.tools.pictures.plots import PLOTS

DOCS = Path(__file__).resolve().parents[3] / "docs"
IMAGES = DOCS / "images"
PAGE = DOCS / "reference" / "benchmarks.md"


def draw_plots(page: Path) -> dict[str, str]:
    """Return the plots of the chapters that a page has, as SVG by name."""
    chapters = read_chapters(page.read_text(encoding="utf-8"))
    return {
        name: draw(*(chapters[title] for title in titles))
        for name, (draw, titles) in PLOTS.items()
        if chapters.keys() >= set(titles)
    }


def outdated(pictures: dict[str, str]) -> list[str]:
    """Name the files in ``docs/images`` that differ from the pictures, are missing, or belong to none."""
    there = {path.stem: path.read_text(encoding="utf-8") for path in IMAGES.glob("*.svg")}
    return sorted(
        f"{name}.svg" for name in there.keys() | pictures.keys() if there.get(name) != pictures.get(name)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw or check, and return the exit status."""
    parser = argparse.ArgumentParser("python -m tests.tools.pictures", description=__doc__)
    parser.add_argument("--check", action="store_true", help="draw nothing, name what is not current")
    parser.add_argument(
        "--plots", nargs=2, type=Path, metavar=("PAGE", "FOLDER"), help="plots of another page"
    )
    options = parser.parse_args(arguments)
    page, folder = options.plots or (PAGE, IMAGES)
    try:
        pictures = draw_plots(page)
    except (NoFiguresError, OSError) as error:
        print(f"{page}: {error}", file=sys.stderr)
        return 2
    if not options.plots:
        pictures |= {name: draw() for name, draw in DIAGRAMS.items()}
    if options.check:
        names = outdated(pictures)
        if names:
            print(f"Not current: {', '.join(names)}. Run make svg.", file=sys.stderr)
        return 1 if names else 0
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in pictures.items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    print(f"{len(pictures)} pictures in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
