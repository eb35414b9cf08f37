# SPDX-License-Identifier: Apache-2.0
"""How Sphinx makes a site of these pages (``make docs``). On GitHub they are read as they are."""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from pathlib import Path

from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))
# Autodoc imports Airflow, which makes its folder.
os.environ.setdefault("AIRFLOW_HOME", str(PROJECT / "build" / "docs-airflow"))

import airflow_changefeed  # noqa: E402 - found by the path above

project = "airflow-changefeed"
project_copyright = "the airflow-changefeed contributors, Apache-2.0"
version = release = airflow_changefeed.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
html_theme = "furo"
html_title = f"{project} {release}"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
copybutton_prompt_text = "$ "
# What a backslash continues is copied with its command.
copybutton_line_continuation_character = "\\"
# Anchors of all headings, named as GitHub names them.
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
toc_object_entries_show_parents = "hide"
# References must lead somewhere; those to classes of others have no pages here.
nitpicky = True
nitpick_ignore_regex = [("py:class", r"(?!airflow_changefeed\b).*")]


def add_toctrees(index: str) -> str:
    """Turn the links below each heading into the navigation; a page stands where it is first."""
    before, *sections = index.split("\n## ")
    seen: set[str] = set()
    for number, section in enumerate(sections):
        links = dict.fromkeys(re.findall(r"\]\(([^):#]+)\.md\)", section))
        pages = [page for page in links if page not in seen]
        seen.update(pages)
        caption = section.partition("\n")[0]
        toctree = ["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""]
        sections[number] = "\n".join([section, "", *toctree])
    return "\n## ".join([before, *sections])


def prepare(app: Sphinx, page: str, source: list[str]) -> None:
    """Uncover directives. GitHub would show them as code, so they stand in comments of HTML."""
    source[0] = re.sub(r"^<!--\n(```\{.*?\n```)\n-->$", r"\1", source[0], flags=re.DOTALL | re.MULTILINE)
    if page in (app.config.root_doc, "CONTRIBUTING"):
        source[0] = add_toctrees(source[0])


def join_names(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Keep ``:param a, b:`` together: Sphinx takes the part before a space for a type."""
    lines[:] = [re.sub(r"^ *:param [\w, *]+:", _without_spaces, line) for line in lines]


def _without_spaces(names: re.Match[str]) -> str:
    return names.group().replace(", ", ",\u200b")


def accept_undocumented(
    app: Sphinx, environment: BuildEnvironment, node: pending_xref, content: Element
) -> Element | None:
    """Show a name of the package that has no page without a link, if it exists; else it is a warning."""
    words = node.get("reftarget", "").split(".")
    if words[0] != "airflow_changefeed":
        return None
    for length in range(len(words), 0, -1):
        try:
            found: object = import_module(".".join(words[:length]))
        except ModuleNotFoundError:
            continue
        for word in words[length:]:
            found = getattr(found, word, None)
        return content if found is not None else None
    return None


def setup(app: Sphinx) -> None:
    """Take part in reading pages and docstrings, and in resolving references."""
    app.connect("source-read", prepare)
    app.connect("autodoc-process-docstring", join_names)
    app.connect("missing-reference", accept_undocumented)
