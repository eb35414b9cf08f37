# SPDX-License-Identifier: Apache-2.0
"""Maps the errors of the table libraries to ours, without secrets."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from airflow_changefeed.exceptions import ChangefeedError, TableConflictError, TableError, TransientError
from airflow_changefeed.storage.errors import harmless, is_full, is_transient

# Rust's object stores and Arrow's say a status and a name, and only in their text.
_REFUSED = re.compile(
    r"\b40[0134]\b (Bad Request|Unauthorized|Forbidden|Not Found)|AccessDenied|ACCESS_DENIED|NoSuchBucket"
    r"|Permission denied|PermissionDenied|Unauthenticated|not yet implemented|Unable to recognise URL"
)
# Refused for now: S3 says 400 to keys that renew themselves.
_EXPIRED = re.compile(r"ExpiredToken|EXPIRED_TOKEN|RequestExpired")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST = 500


def check_installed(package: str, extra: str, what: str) -> None:
    """
    Check that a table library is installed.

    :raises TableError: it is not.
    """
    try:
        importlib.import_module(package)
    except ImportError as problem:
        raise TableError(
            f"{what} needs the package {package}, which cannot be imported here ({problem}); run "
            f"pip install 'airflow-changefeed[{extra}]'"
        ) from None


@contextmanager
def asking(
    what: str,
    secrets: Sequence[str],
    *,
    conflicts: tuple[type[Exception], ...] = (),
    terminal: tuple[type[Exception], ...] = (),
    is_commit: bool = False,
) -> Iterator[None]:
    """
    Map the errors of a call to a table library.

    :param what: the table, for messages.
    :param conflicts: the library's errors that say that the table is another one now.
    :param terminal: the library's errors that no retry helps.
    :param is_commit: whether a lost answer may hide a change that was made.
    :raises TableConflictError: somebody else changed the table, or a commit got no answer.
    :raises TableError: it was refused, or the table cannot be read.
    :raises TransientError: the table could not be reached, and nothing was asked to change.
    """
    try:
        yield
    except ChangefeedError:
        raise
    except Exception as problem:
        said = _said(problem, secrets)
        if isinstance(problem, conflicts) and not is_full(problem):
            raise TableConflictError(
                f"{what} was changed by somebody else since it was read; read it again: {said}", table=what
            ) from None
        is_refused = isinstance(problem, terminal) or _REFUSED.search(said) or not is_transient(problem)
        if is_refused and not (is_full(problem) or _EXPIRED.search(str(problem))):
            raise TableError(
                f"{what} cannot be used: {said}; check the table, path_conn_id and permissions", table=what
            ) from None
        if is_commit:
            raise TableConflictError(
                f"the commit to {what} got no answer, and may have been made; read the table again: {said}",
                table=what,
            ) from None
        raise TransientError(f"{what} did not answer: {said}", table=what) from None


def _said(problem: Exception, secrets: Sequence[str]) -> str:
    """Return what a library says, on one line, without colours and secrets."""
    text = " ".join(_COLOURS.sub("", str(problem)).split())
    text = harmless(f"{type(problem).__name__}: {text}", secrets)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
