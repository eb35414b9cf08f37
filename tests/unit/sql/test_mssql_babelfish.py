# SPDX-License-Identifier: Apache-2.0
"""The product is written for SQL Server; what Babelfish cannot do is rewritten by the tests alone."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from airflow_changefeed.sql import load_sql, mssql
from airflow_changefeed.sql.mssql import CAPTURE, FEED, INSTALL, install_script
from tests.integration.babelfish import FORMS, Form, rewrite, rewrite_script

PRODUCT = Path(str(files("airflow_changefeed")))


def _names() -> list[str]:
    folders = {"install": INSTALL, "feed": FEED, "capture": CAPTURE}
    names = (f"mssql/{folder}/{name}.sql" for folder, listed in folders.items() for name in listed)
    return [name for name in names if (PRODUCT / "sql" / name).is_file()]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.plain)
def test_each_form_is_still_there_to_be_rewritten(form: Form) -> None:
    """One that no file has any more goes."""
    assert any(form.plain in load_sql(name) for name in _names() if name.startswith(form.files))


def test_what_is_rewritten_is_gone() -> None:
    """No file keeps words that Babelfish does not execute."""
    for name in _names():
        text = rewrite(name, load_sql(name)).partition("\nexec (N'create or alter ")[0]
        for form in FORMS:
            assert not name.startswith(form.files) or form.plain not in text, (name, form.plain)


def test_a_script_is_rewritten_as_its_files_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a released version only the script is left."""
    plain = install_script()
    monkeypatch.setattr(mssql, "load_sql", lambda name: rewrite(name, load_sql(name)))
    rewritten = install_script()
    assert rewritten != plain
    assert rewrite_script(plain) == rewritten


def _without_comments(file: Path) -> Iterator[str]:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type != tokenize.COMMENT:
                yield token.string
    else:
        for line in text.splitlines():
            yield line.partition("--")[0] if file.suffix == ".sql" else line


def test_the_product_knows_no_babelfish() -> None:
    """Only a comment may name it: why a form was chosen that both execute."""
    kept = []
    for file in sorted(PRODUCT.rglob("*")):
        if not file.is_file() or "__pycache__" in file.parts or file.suffix in (".pyc", ".png", ".ico"):
            continue
        if "babelfish" not in file.read_text(encoding="utf-8", errors="replace").lower():
            continue
        kept.append(str(file.relative_to(PRODUCT)))
        assert not any("babelfish" in text.lower() for text in _without_comments(file)), file
    assert kept == KEPT


#: Files with a comment that names it.
KEPT = [
    "sources/mssql/feed/poll.py",
    "sql/mssql/feed/consume_events.procedure.sql",
    "sql/mssql/install/check_consumer.procedure.sql",
    "sql/mssql/install/drop_consumer.procedure.sql",
]
