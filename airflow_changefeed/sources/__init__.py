# SPDX-License-Identifier: Apache-2.0
"""The databases that hold feeds. A source is opened from a plain description of a connection."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_changefeed.exceptions import ConnectionNotUsableError, InvalidArgumentError

if TYPE_CHECKING:
    from airflow_changefeed.sources.base import FeedSource

#: Connection type to source class; the only registry of types.
SOURCES = {
    "mssql": "airflow_changefeed.sources.mssql.MssqlFeedSource",
    "sqlite": "airflow_changefeed.sources.sqlite.SqliteFeedSource",
}


def open_source(description: Mapping[str, Any], **overrides: Any) -> FeedSource:
    """
    Open a source from its description.

    :param description: ``{"type": "sqlite", "path": "/data/feeds.db", ...}``, from
        ``FeedSource.describe``.
    :param overrides: options that replace those of the description, for example ``lock_timeout=10``.
    :raises ConnectionNotUsableError: the type cannot hold feeds.
    :raises InvalidArgumentError: an unknown option, or a required one is missing.
    """
    options = {**description, **overrides}
    kind = options.pop("type", None)
    if kind not in SOURCES:
        raise ConnectionNotUsableError(
            f"connection type {kind!r} cannot hold feeds; use one of {', '.join(sorted(SOURCES))}", type=kind
        )
    module, _, name = SOURCES[kind].rpartition(".")
    implementation = getattr(import_module(module), name)
    try:
        inspect.signature(implementation).bind(**options)
    except TypeError as problem:
        raise InvalidArgumentError(f"{kind} source: {problem}; see the reference of that source") from None
    source: FeedSource = implementation(**options)
    return source
