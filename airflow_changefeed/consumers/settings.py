# SPDX-License-Identifier: Apache-2.0
"""The options of the default consumer, given by its clients as a JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_changefeed.exceptions import InvalidArgumentError

_FLAGS = ("with_epoch", "with_sequence", "with_tid", "batch_consume", "with_txn_sentinel")
_TIMES = ("register_timeout", "poll_timeout", "emit_timeout")
_MAX_MILLISECONDS = 86_400_000


@dataclass(frozen=True)
class DefaultOptions:
    """
    Options of the default consumer; names and units are Comdb2's.

    :param with_epoch, with_sequence, with_tid: whether rows have this column.
    :param batch_consume: whether all events of a transaction are consumed together.
    :param with_txn_sentinel: whether a row marks the end of each transaction.
    :param register_timeout: milliseconds to wait for a shard before a timeout row; None waits forever.
    :param poll_timeout: milliseconds to wait for an event before a timeout row; None waits forever.
    :param emit_timeout: milliseconds the client has to request the next row while another consumer waits.
    :raises InvalidArgumentError: names every problem.
    """

    with_epoch: bool = False
    with_sequence: bool = False
    with_tid: bool = False
    batch_consume: bool = False
    with_txn_sentinel: bool = False
    register_timeout: float | None = None
    poll_timeout: float | None = None
    emit_timeout: float = 10_000

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in (*_FLAGS, *_TIMES)}
        InvalidArgumentError.collect("options of the default consumer", _problems(given))

    @classmethod
    def from_json(cls, text: str) -> DefaultOptions:
        """
        Read them.

        :raises InvalidArgumentError: not a JSON object, unknown names or wrong types; names every
            problem.
        """
        subject = "options of the default consumer"
        try:
            given = json.loads(text)
        except json.JSONDecodeError as error:
            raise InvalidArgumentError(f"{subject}: {error}; pass a JSON object") from None
        if not isinstance(given, dict):
            raise InvalidArgumentError(f"{subject}: not a JSON object: {text[:100]}")
        known = {name: value for name, value in given.items() if name in (*_FLAGS, *_TIMES)}
        problems = [
            f"unknown option {name!r}; known options are {', '.join((*_FLAGS, *_TIMES))}"
            for name in given
            if name not in known
        ]
        InvalidArgumentError.collect(subject, problems + _problems(known))
        return cls(**known)


def _problems(given: Mapping[str, Any]) -> list[str]:
    problems = [
        f"{name} must be true or false, not {json.dumps(given[name], default=str)}"
        for name in _FLAGS
        if name in given and not isinstance(given[name], bool)
    ]
    for name in _TIMES:
        value: Any = given.get(name)
        if value is None and (name not in given or name != "emit_timeout"):
            continue
        lowest = 1 if name == "emit_timeout" else 0
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not lowest <= value <= _MAX_MILLISECONDS:
            problems.append(
                f"{name} must be {lowest} to {_MAX_MILLISECONDS} milliseconds, not "
                f"{json.dumps(value, default=str)}"
            )
    if given.get("with_txn_sentinel") is True and given.get("batch_consume") is not True:
        problems.append("with_txn_sentinel needs batch_consume, which marks where a transaction ends")
    return problems
