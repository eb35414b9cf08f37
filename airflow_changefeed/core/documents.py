# SPDX-License-Identifier: Apache-2.0
"""JSON documents with a schema version and a digest: cursors, plans, manifests, results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from airflow_changefeed.core.codec import decode, encode
from airflow_changefeed.exceptions import TerminalError, UnsupportedVersionError

_Document = TypeVar("_Document", bound="Document")


class Document:
    """
    Base of a dataclass that is kept as a document.

    ``KIND`` says what it is: ``"changefeed manifest"``. ``ERROR`` is raised for a text that is not one.
    """

    KIND: ClassVar[str]
    SCHEMA_VERSION: ClassVar[int] = 1
    ERROR: ClassVar[type[TerminalError]] = TerminalError

    def to_json(self) -> str:
        """Write the document."""
        return dump(self.KIND, self.SCHEMA_VERSION, encode(self), indent=2)

    @classmethod
    def from_json(cls: type[_Document], text: str, *, where: str) -> _Document:
        """
        Read the document.

        :param where: names it in errors, for example its path.
        :raises TerminalError: not such a document, or damaged; as ``ERROR``.
        :raises UnsupportedVersionError: a newer version wrote it.
        """
        content = load(text, cls.KIND, cls.SCHEMA_VERSION, where=where, error=cls.ERROR)
        return decode(cls, content, where=where, error=cls.ERROR)


def dump(kind: str, version: int, content: Mapping[str, Any], *, indent: int | None = None) -> str:
    """
    Write a document.

    :param kind: what it is, for example ``"changefeed manifest"``.
    :param content: JSON values; must not hold the keys ``kind``, ``schema_version`` and ``digest``.
    """
    document = {"kind": kind, "schema_version": version, **content}
    return json.dumps(
        {**document, "digest": _digest(document)}, indent=indent, ensure_ascii=False, allow_nan=False
    )


def load(
    text: str, kind: str, version: int, *, where: str, error: type[TerminalError], check_digest: bool = True
) -> dict[str, Any]:
    """
    Read a document of this version or an older one.

    :param where: names the document in errors.
    :param error: raised when the text is not such a document, or its digest does not match its content.
    :param check_digest: False reads a document that a person may have edited.
    :return: the content with ``schema_version`` and ``is_intact``, without kind and digest.
    :raises UnsupportedVersionError: a newer version wrote it.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise error(f"{where} is not a {kind}: invalid JSON ({problem})", where=where) from None
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise error(f"{where} is not a {kind}: its JSON is something else", where=where)
    found = document.get("schema_version")
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise error(f"{where} is not a {kind}: its schema_version is {found!r}", where=where)
    if found > version:
        raise UnsupportedVersionError(
            f"{where} is a {kind} of schema version {found}, but this installation reads up to {version}; "
            "upgrade airflow-changefeed here",
            where=where,
            found=found,
            supported=version,
        )
    digest = document.pop("digest", None)
    is_intact = _fits(digest, document)
    if check_digest and not is_intact:
        raise error(f"{where} is damaged: its digest does not match its content", where=where)
    del document["kind"]
    return {**document, "is_intact": is_intact}


def _fits(digest: object, document: Mapping[str, Any]) -> bool:
    try:
        return digest == _digest(document)
    except (ValueError, RecursionError):
        # NaN, half a character, or a depth that the parser just took: dump() never wrote them.
        return False


def _digest(document: Mapping[str, Any]) -> str:
    canonical = json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
