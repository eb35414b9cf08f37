# SPDX-License-Identifier: Apache-2.0
"""The secrets in the extra of a connection, and how Airflow masks them."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, quote_plus

from airflow_changefeed.version_compat import redact

_SECRET_NAME = re.compile(
    "auth(?!entication)|cookie|credential|connection_string|header|key|pass|proxy|pwd|sas|secret|sign|token",
    re.IGNORECASE,
)
# Keys of object stores contain slashes, and signed URLs a query.
_USER_INFO, _QUERY = re.compile(r"//[^\s'\"]*@"), re.compile(r"(://[^\s'\"?]*)\?[^\s'\"]*")
# Masked, they would be missing everywhere.
_NO_SECRETS = ("true", "false")
# As Airflow does: shorter ones are part of many words.
_LEAST_SECRET = 5
_PRIVATE = 0o077


class _Cleaning(logging.Filter):
    """Removes secrets from log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.secrets: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass every line, without secrets."""
        try:
            said = record.getMessage()
        except (TypeError, ValueError):
            return True  # whose arguments do not fit; the handler says so
        text = said
        for secret in sorted(self.secrets.copy(), key=len, reverse=True):
            text = text.replace(secret, "***")
        if text != said:
            record.msg, record.args = text, None
        return True


_CLEANING = _Cleaning()


def hide_secrets(extra: Mapping[str, Any]) -> None:
    """
    Let Airflow mask what is secret in an extra wherever it logs.

    Airflow itself masks a connection's password, and its extra as a whole. Libraries that log at debug level
    reveal parts of it: a token in the URL of a request, a key in a header. Airflow's masks hold for the
    log of a task, and not for the copy of it that executors write to their own output; so what libraries log
    is also cleaned in this process.

    :param extra: of a connection; values below a secret's name are secret, at whatever depth.
    """
    from airflow.sdk.log import mask_secret

    for secret in _secrets(extra, is_secret=False):
        # A URL quotes it.
        for text in sorted({secret, quote(secret), quote(secret, safe=""), quote_plus(secret)}):
            mask_secret(text)
            if len(text) >= _LEAST_SECRET:
                _CLEANING.secrets.add(text)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_CLEANING)


def _secrets(value: object, *, is_secret: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _secrets(each, is_secret=is_secret or bool(_SECRET_NAME.search(str(name))))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _secrets(each, is_secret=is_secret)
    elif isinstance(value, str) and is_secret and value.lower() not in _NO_SECRETS:
        yield value


def without_secrets(text: str) -> str:
    """
    Mask the secrets that Airflow knows, and user information and queries of URLs, in a text.

    Masks rather too much than too little.
    """
    return _QUERY.sub(r"\1?***", _USER_INFO.sub("//***@", str(redact(text))))


def clean_values(value: Any) -> Any:
    """Return JSON values whose texts have passed :func:`without_secrets`."""
    if isinstance(value, dict):
        return {name: clean_values(part) for name, part in value.items()}
    if isinstance(value, list):
        return [clean_values(part) for part in value]
    return without_secrets(value) if isinstance(value, str) else value


@contextmanager
def private_files() -> Iterator[None]:
    """
    Let files that are made meanwhile be for their owner alone.

    Spark's provider writes the keytab of a connection's extra into the temporary folder, for all to read.
    """
    before = os.umask(_PRIVATE)
    try:
        yield
    finally:
        os.umask(before)
