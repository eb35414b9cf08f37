# SPDX-License-Identifier: Apache-2.0
"""Maps errors of remote stores to ours, transient or terminal, without secrets."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import quote, quote_plus

from airflow_changefeed.exceptions import ChangefeedError, OutputNotWritableError, TransientError

_LEAST_SECRET = 4
# A colon before something other than a port; an IPv6 host is in brackets.
_USERINFO = re.compile(r"://[^/@:\[]*:(?:[^/]*@|(?!\d*(?:[/:]|$)))")
_LOGIN = re.compile(r"://[^/\s@]*@")
_QUERY = re.compile(r"(://[^\s?'\"]+)\?[^\s'\"]+")
# Also aiohttp's bad message (its own 400): an answer that was cut off.
_UNREACHED = re.compile(r"Timeout|Connect|Unreachable|ServerDisconnected|Payload|BadHttpMessage")
_BUSY = re.compile(r"SlowDown|ServiceUnavailable|InternalError|Throttl|reduce your request rate")
# gcsfs says no more of a 403 than its name.
_REFUSED = re.compile(r"Credential|Authentication|Unauthorized|AccessDenied|^OSError: Forbidden")
# botocore's errors, without a status, for requests that it refuses to send.
_UNSENT = re.compile(
    r"Validation|^NoRegion|^Unknown|^Invalid|^Unsupported|^Config|^ProfileNotFound|^MissingDependency"
)
_REFUSED_STATUS = range(400, 500)
# Request timeout, conflict (another request is running), too early, too many requests.
_LATER_STATUS = {408, 409, 425, 429}
_FULL_ERRNO = {errno.ENOSPC, errno.EDQUOT}
# Also of stores with quotas (Ceph, MinIO, Google, HDFS), which refuse with 400 or 403, and of libraries.
_FULL = re.compile(
    r"no space left|not enough space|quota ?exceeded|storage ?full|insufficient ?storage|dis[ck] is full"
    r"|os error (28|122)\b",
    re.IGNORECASE,
)
# Mistakes of ours or in the options; an error with a number is classified by the number first.
_MISTAKES = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    NameError,
    ImportError,
    ArithmeticError,
    AssertionError,
    NotImplementedError,
    PermissionError,
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
)
_REFUSED_ERRNO = {
    getattr(errno, name)
    for name in (
        "EACCES",
        "EPERM",
        "EROFS",
        "EXDEV",
        "EFBIG",
        "EINVAL",
        "ENOENT",
        "ENOTDIR",
        "EISDIR",
        "EEXIST",
        "ENOTEMPTY",
        "ENAMETOOLONG",
        "ELOOP",
        "EMSGSIZE",
        "ENOSYS",
        "EOPNOTSUPP",
        "EREMCHG",
    )
    if hasattr(errno, name)
}


def check_path(path: str) -> None:
    """Raise OutputNotWritableError, without the secret, if a path has a user's secret before the host."""
    if _USERINFO.search(path):
        raise OutputNotWritableError(
            "the output path contains a secret (user:secret@host), which logs and plans would show; "
            "remove user and secret, store them in an Airflow connection, and pass the connection as "
            "path_conn_id"
        )


def secrets_of(value: object) -> Iterator[str]:
    """Yield possible secrets in storage options, at any depth."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from secrets_of(each)
    elif isinstance(value, str) and len(value) >= _LEAST_SECRET:
        yield value


def _forms(secret: str) -> set[str]:
    """Return the forms of a secret: as it is, in a URL, in JSON, and in Python's repr."""
    in_url = {quote(secret), quote(secret, safe=""), quote_plus(secret)}
    return {secret, *in_url, json.dumps(secret)[1:-1], repr(secret)[1:-1]}


def harmless(text: str, secrets: Sequence[str]) -> str:
    """Return an error's text without secrets: those of the options, and signatures and users in URLs."""
    for secret in sorted({form for each in secrets for form in _forms(each)}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _QUERY.sub(r"\1?***", _LOGIN.sub("://***@", text))


def is_full(problem: BaseException) -> bool:
    """Whether a disk, a store or a quota is full: somebody may free space, or others' files may go."""
    return any(
        getattr(each, "errno", None) in _FULL_ERRNO or _FULL.search(f"{type(each).__name__}: {each}")
        for each in _chain(problem)
    )


def is_refusal(number: int | None) -> bool:
    """Whether an operating system's error number says that a retry would be refused as well."""
    return number is None or number in _REFUSED_ERRNO


def is_transient(problem: BaseException) -> bool:
    """
    Whether a retry may help: a store's libraries hand on its answer as a status, a number or a cause.

    Refusals are terminal: permissions, credentials and our own mistakes. All other errors of a
    remote store are transient, including unknown ones.
    """
    chain, full = list(_chain(problem)), is_full(problem)
    if full or any(_REFUSED.search(f"{type(each).__name__}: {each}") or _is_unsent(each) for each in chain):
        return full
    # The store's answer counts before a library's own status: aiohttp calls a missing answer a 400.
    if (answered := _judged(_answered(each) for each in chain)) is not None:
        return answered
    if any(_UNREACHED.search(kind.__name__) for each in chain for kind in type(each).__mro__):
        return True
    if any(_BUSY.search(str(each)) for each in chain):
        return True
    if (named := _judged(_number(getattr(each, "code", None)) for each in chain)) is not None:
        return named
    numbers = {each.errno for each in chain if isinstance(each, OSError) and each.errno is not None}
    return not numbers & _REFUSED_ERRNO and not any(isinstance(each, _MISTAKES) for each in chain)


def _chain(problem: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    each: BaseException | None = problem
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _is_unsent(problem: BaseException) -> bool:
    """Whether botocore found a mistake in the request."""
    kind = type(problem)
    return bool(_UNSENT.search(kind.__name__)) and any(
        each.__name__ == "BotoCoreError" for each in kind.__mro__
    )


def _judged(statuses: Iterable[int | None]) -> bool | None:
    """Whether HTTP statuses are transient; None without any."""
    known = [status for status in statuses if status is not None]
    if not known:
        return None
    return any(status in _LATER_STATUS or status not in _REFUSED_STATUS for status in known)


def _answered(problem: BaseException) -> int | None:
    """Return the HTTP status of the answer that an error of botocore, Azure's client or requests carries."""
    response = getattr(problem, "response", None)
    if isinstance(response, Mapping):
        return _number(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    return _number(getattr(problem, "status_code", None)) or _number(getattr(response, "status_code", None))


def _number(value: object) -> int | None:
    try:
        number = int(value) if isinstance(value, (int, str)) else 0
    except ValueError:
        return None
    return number if number in range(100, 600) else None


def full_error(path: str, said: str) -> TransientError:
    """Return the error for an output without space."""
    return TransientError(
        f"output path {path} has no space left: {said}; free space or raise the quota, then retry",
        path=path,
    )


@contextmanager
def answering(
    path: str,
    secrets: Sequence[str] = (),
    *,
    ours: tuple[type[Exception], ...] = (FileNotFoundError, ChangefeedError),
    extra: str = "",
) -> Iterator[None]:
    """
    Map errors of a remote file system to ours, without secrets.

    :param ours: errors that stay what they are; a missing file is one that callers expect.
    :param extra: of this package, which installs what opens such paths.
    :raises TransientError: it could not be reached, or failed temporarily.
    :raises OutputNotWritableError: it refused the request, or the request was invalid.
    """
    try:
        yield
    except ours:
        raise
    except Exception as problem:
        path = harmless(path, secrets)
        said = harmless(f"{type(problem).__name__}: {problem}", secrets)
        if is_full(problem):
            raise full_error(path, said) from None
        if is_transient(problem):
            raise TransientError(f"output path {path} did not answer: {said}", path=path) from None
        remedy = "check the path, path_conn_id and permissions"
        if isinstance(problem, ImportError):
            remedy = f"run pip install 'airflow-changefeed[{extra}]'" if extra else "install that package"
        raise OutputNotWritableError(
            f"output path {path} cannot be used: {said}; {remedy}",
            path=path,
        ) from None
