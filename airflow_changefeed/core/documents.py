# SPDX-License-Identifier: Apache-2.0
"""JSON documents with a schema version and a digest: the common ground of cursor, plan and manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from airflow_changefeed.exceptions import TerminalError, UnsupportedVersionError


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
    :param error: raised when the text is not such a document, or its digest does not fit its content.
    :param check_digest: False reads a document that a person may have edited.
    :return: the content with ``schema_version`` and ``is_intact``, without kind and digest.
    :raises UnsupportedVersionError: a newer version wrote it.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise error(f"{where} is no {kind}: not JSON ({problem})", where=where) from None
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise error(f"{where} is no {kind}: its JSON says something else", where=where)
    found = document.get("schema_version")
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise error(f"{where} is no {kind}: its schema_version is {found!r}", where=where)
    if found > version:
        raise UnsupportedVersionError(
            f"{where} is a {kind} of schema version {found}, this installation reads up to {version}: "
            "upgrade airflow-changefeed here, or finish with the newer one",
            where=where,
            found=found,
            supported=version,
        )
    digest = document.pop("digest", None)
    is_intact = _fits(digest, document)
    if check_digest and not is_intact:
        raise error(f"{where} is damaged: its digest does not fit its content", where=where)
    del document["kind"]
    return {**document, "is_intact": is_intact}


def _fits(digest: object, document: Mapping[str, Any]) -> bool:
    try:
        return digest == _digest(document)
    except ValueError:
        # NaN or half a character: Python's parser lets them pass, but dump() never wrote them.
        return False


def _digest(document: Mapping[str, Any]) -> str:
    canonical = json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
