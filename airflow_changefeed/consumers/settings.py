# SPDX-License-Identifier: Apache-2.0
"""The options of the default consumer, as its clients give them: a JSON object."""

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
    What the default consumer is asked for; names and units are those of Comdb2's.

    :param with_epoch, with_sequence, with_tid: whether rows have a column for it.
    :param batch_consume: whether all events of a transaction are consumed together.
    :param with_txn_sentinel: whether a row says that they are complete.
    :param register_timeout: milliseconds to wait for a shard before a row says so; None waits for ever.
    :param poll_timeout: milliseconds to wait for an event before a row says so; None waits for ever.
    :param emit_timeout: milliseconds that the client has to ask for the next row while another one waits.
    :raises InvalidArgumentError: names all that is wrong; terminal.
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

        :raises InvalidArgumentError: no JSON object, unknown names, or values of the wrong type; names all.
        """
        subject = "options of the default consumer"
        try:
            given = json.loads(text)
        except json.JSONDecodeError as error:
            raise InvalidArgumentError(f"{subject}: {error}; give a JSON object") from None
        if not isinstance(given, dict):
            raise InvalidArgumentError(f"{subject}: give a JSON object, not {text[:100]}")
        known = {name: value for name, value in given.items() if name in (*_FLAGS, *_TIMES)}
        problems = [
            f"there is no option {name!r}; there are {', '.join((*_FLAGS, *_TIMES))}"
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
        problems.append("with_txn_sentinel needs batch_consume: without it nothing ends a transaction")
    return problems
