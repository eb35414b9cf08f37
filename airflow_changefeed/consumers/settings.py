# SPDX-License-Identifier: Apache-2.0
"""How the options of consumers are read, and those of the default one, which its clients give as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_changefeed.core.values import (
    Reader,
    flag,
    json_object,
    number,
    optional,
    read_value,
    read_values,
    whole,
)
from airflow_changefeed.exceptions import InvalidArgumentError

#: Seconds of a day at most.
_SECONDS = number(above=0, highest=86_400, unit="seconds")
#: How each option of a consumer and of a run is read.
OPTIONS: dict[str, Reader] = {
    "register_timeout": optional(number(0, 86_400, "seconds")),
    "emit_timeout": _SECONDS,
    "poll_interval": _SECONDS,
    "at_most_shards": optional(whole(1)),
    "max_events": optional(whole(1)),
    # A century is no limit that anybody means.
    "handler_timeout": optional(number(above=0, highest=36_525 * 86_400, unit="seconds")),
}
_SUBJECT = "options of the default consumer"
_MAX_MILLISECONDS = 86_400_000
_WAIT = optional(number(0, _MAX_MILLISECONDS, "milliseconds"))
_READ: dict[str, Reader] = {
    **dict.fromkeys(("with_epoch", "with_sequence", "with_tid", "batch_consume", "with_txn_sentinel"), flag),
    **dict.fromkeys(("register_timeout", "poll_timeout"), _WAIT),
    "emit_timeout": number(1, _MAX_MILLISECONDS, "milliseconds"),
}


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
        problems = read_values(self, _READ)
        if self.with_txn_sentinel is True and self.batch_consume is not True:
            problems.append("with_txn_sentinel needs batch_consume, which marks where a transaction ends")
        InvalidArgumentError.collect(_SUBJECT, problems)

    @classmethod
    def from_json(cls, text: str) -> DefaultOptions:
        """
        Read them.

        :raises InvalidArgumentError: not a JSON object, unknown names or values that mean nothing; names
            every problem.
        """
        given = read_value(_SUBJECT, text, json_object)
        problems = [
            f"unknown option {name!r}; known options are {', '.join(_READ)}"
            for name in given
            if name not in _READ
        ]
        try:
            found = cls(**{name: value for name, value in given.items() if name in _READ})
        except InvalidArgumentError as error:
            problems += error.facts["problems"]
        InvalidArgumentError.collect(_SUBJECT, problems)
        return found
