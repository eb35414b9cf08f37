# SPDX-License-Identifier: Apache-2.0
"""How pictures look: one SVG for light and dark, whose colours follow what the reader's browser prefers."""

from __future__ import annotations

import io
import re

import matplotlib
from matplotlib.figure import Figure

#: Colours by what they are for: light, dark. Figures are drawn in stand-ins, which become variables of CSS.
_COLOURS = {
    "ink": ("#1f2328", "#e6edf3"),
    "paper": ("#ffffff", "#15191f"),
    "quiet": ("#59636e", "#9aa4af"),
    "fill": ("#f1f4f7", "#222930"),
    "blue": ("#0a60c2", "#4c9bf5"),
    "light blue": ("#dcebfc", "#12305a"),
    "orange": ("#a8570a", "#e0904a"),
    "light orange": ("#fdebd8", "#4a2d10"),
    "grey": ("#8a939c", "#747e88"),
}
_STAND_INS = {name: f"#0a0b{number:02x}" for number, name in enumerate(_COLOURS)}
INK, PAPER, QUIET, FILL, BLUE, LIGHT_BLUE, ORANGE, LIGHT_ORANGE, GREY = _STAND_INS.values()

matplotlib.rcParams.update(
    {
        "svg.fonttype": "none",
        # Names of clip paths and the like are the same each time.
        "svg.hashsalt": "airflow-changefeed",
        "font.family": ["DejaVu Sans"],
        "font.size": 9,
        "text.color": INK,
        "axes.edgecolor": QUIET,
        "axes.labelcolor": QUIET,
        "axes.facecolor": PAPER,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 9,
        "axes.titlecolor": INK,
        "figure.facecolor": PAPER,
        "lines.color": INK,
        "xtick.color": QUIET,
        "ytick.color": QUIET,
        "ytick.labelcolor": INK,
    }
)


def svg_of(figure: Figure, title: str) -> str:
    """
    Return a figure as SVG that is the same each time.

    :param title: for people who do not see it.
    """
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Title": title})
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", written.getvalue(), flags=re.DOTALL)
    text = re.sub(r"font: (\S+) 'DejaVu Sans'", r"font: \1 'DejaVu Sans', Verdana, sans-serif", text)
    for name, stand_in in _STAND_INS.items():
        text = text.replace(stand_in, f"var(--{name.replace(' ', '-')})")
    head, tag, body = text.partition("<defs>")
    return "\n".join(line.rstrip() for line in f"{head}{_css()}\n {tag}{body}".splitlines()) + "\n"


def _css() -> str:
    light, dark = (
        " ".join(f"--{name.replace(' ', '-')}: {pair[which]};" for name, pair in _COLOURS.items())
        for which in (0, 1)
    )
    return f"<style>svg {{ {light} }} @media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}</style>"
