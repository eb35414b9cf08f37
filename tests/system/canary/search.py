# SPDX-License-Identifier: Apache-2.0
"""Look for canaries in whatever may hold one, and prove of each place that it was looked at."""

from __future__ import annotations

import base64
import gzip
import html
import json
import pickle
import traceback
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

import pyarrow.parquet as pq
from sqlalchemy import MetaData, create_engine, select

from airflow_changefeed.exceptions import ChangefeedError

#: Signs that URLs, JSON, HTML, Python, shells and connection strings write in their own ways.
SPECIAL = "/+=&'\"\\{};%"


def canary(where: str) -> str:
    """
    Return a secret for a place that one can come from.

    :param where: letters and digits, which lead back from a finding to the place.
    """
    return f"Cnry7{where}{SPECIAL}{where}7yrnC"


def forms(secret: str) -> set[bytes]:
    """Return the ways in which a text may be written; the halves without special signs are among them."""
    plain = secret.encode()
    words = {secret, *secret.split(SPECIAL), quote(secret), quote(secret, safe=""), quote_plus(secret)}
    words |= {json.dumps(secret)[1:-1], repr(secret)[1:-1], html.escape(secret)}
    found = {word.encode() for word in words}
    found |= {secret.encode("utf-16-le"), plain.hex().encode(), plain.hex().upper().encode()}
    for before in range(3):
        # Whatever stands before and behind it, these characters of base64 come of the secret alone.
        encoded = base64.b64encode(b"\0" * before + plain)
        sure = encoded[-(-before * 8 // 6) : (before + len(plain)) * 8 // 6]
        found |= {sure, sure.replace(b"+", b"-").replace(b"/", b"_")}
    return found


class Search:
    """
    A search for secrets.

    :param canaries: by the place that each comes from.
    """

    def __init__(self, canaries: dict[str, str]) -> None:
        self._forms = {name: forms(secret) for name, secret in canaries.items()}
        #: What was found, in words.
        self.leaks: list[str] = []
        #: How many bytes were looked at, by place.
        self.looked: dict[str, int] = {}

    def found(self, content: bytes) -> list[str]:
        """Return the canaries that a content holds."""
        return [name for name, each in self._forms.items() if any(form in content for form in each)]

    def look(self, place: str, content: str | bytes, *markers: str) -> None:
        """
        Look into a place.

        :param markers: what is certainly there; an error without, as then something else was looked at.
        """
        data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
        for marker in markers:
            assert marker.encode() in data, (
                f"{place} was not searched: {marker!r} is not in it: {data[:2000]!r}"
            )
        assert markers, place
        self._note(place, data)

    def look_into(self, place: str, folder: Path, *markers: str) -> None:
        """Look into all files below a folder, packed ones too; each marker is in one of them, or its name."""
        left = set(markers)
        for path, data in _files(folder):
            left -= {marker for marker in left if marker.encode() in data or marker in path}
            self._note(f"{place}: {path}", path.encode() + data)
        assert not left, f"{place} was not searched: {left} is in none of the files of {folder}"
        assert markers, place

    def look_at_metadata(self, url: str, markers: dict[str, str]) -> None:
        """
        Look into all tables of Airflow's metadata but that of connections, which hold secrets by right.

        :param markers: by table, what is certainly there.
        """
        engine = create_engine(url)
        try:
            known = MetaData()
            known.reflect(engine)
            left = dict(markers)
            with engine.connect() as connection:
                for name, table in known.tables.items():
                    if name == "connection":
                        continue
                    data = b"\n".join(
                        _raw(value) for row in connection.execute(select(table)) for value in row
                    )
                    if name in left:
                        assert left.pop(name).encode() in data, (
                            f"table {name} was not searched: {data[:2000]!r}"
                        )
                    self._note(f"metadata: {name}", data)
        finally:
            engine.dispose()
        assert not left, f"the metadata have no tables {sorted(left)}"

    def look_at_error(self, place: str, error: BaseException, *markers: str) -> None:
        """Look into an exception, its traceback, all it carries and all it came of, and into its pickle."""
        assert error.__traceback__ is not None, place
        texts = ["".join(traceback.format_exception(error))]
        for each in _chain(error):
            texts += [str(each), repr(each), repr(each.args), repr(vars(each))]
        self.look(place, "\n".join(texts), *markers)
        for each in _chain(error):
            # Those that go from process to process; others of drivers cannot be pickled.
            if isinstance(each, ChangefeedError):
                self._note(f"{place}: pickle", pickle.dumps(each))

    def _note(self, place: str, data: bytes) -> None:
        self.looked[place] = self.looked.get(place, 0) + len(data)
        self.leaks += [f"{place} holds the canary of {name}" for name in self.found(data)]


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        name, data = str(path.relative_to(folder)), path.read_bytes()
        yield name, data
        if path.suffix == ".gz":
            yield f"{name}, unpacked", gzip.decompress(data)
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                yield f"{name}, unpacked", b"\n".join(archive.read(each) for each in archive.namelist())
        elif path.suffix == ".parquet":
            file = pq.ParquetFile(path)
            words = [
                str(file.schema_arrow.metadata),
                str(file.metadata.to_dict()),
                str(file.read().to_pylist()),
            ]
            yield f"{name}, read", "\n".join(words).encode()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    todo = [error]
    while todo:
        each = todo.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            # What is suppressed is shown by nobody, as by Python's own traceback.
            todo += [each.__cause__, None if each.__suppress_context__ else each.__context__]


def _raw(value: object) -> bytes:
    if isinstance(value, (bytes, memoryview)):
        return bytes(value)
    return (value if isinstance(value, str) else repr(value)).encode()
