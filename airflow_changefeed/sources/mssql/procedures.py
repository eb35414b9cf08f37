# SPDX-License-Identifier: Apache-2.0
"""Calls of our procedures, with the types that their files declare."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from airflow_changefeed.exceptions import storable
from airflow_changefeed.sources.mssql.names import quote
from airflow_changefeed.sql import load_sql
from airflow_changefeed.sql.mssql import FEED, INSTALL

#: Parameters for texts of people, handlers and drivers, which may hold what no database stores.
_FREE_TEXTS = ("by", "error", "holder", "note", "reason", "why")
_PARAMETER = re.compile(r"@(\w+) (<<shard_type>>|\w+(?:\(\w+\))?)")


@cache
def parameter_types(procedure: str) -> dict[str, str]:
    """
    Return the types of a procedure's parameters by name, as the file that creates it declares them.

    A procedure that differs between kinds of feeds has the same parameters in each of their files.
    """
    files = [f"install/{name}" for name in INSTALL] + [f"feed/{name}" for name in FEED]
    file = next(file for file in files if file.rpartition("/")[2] == f"{procedure}.procedure")
    _, _, created = load_sql(f"mssql/{file}.sql").partition("\ncreate or alter procedure ")
    return dict(_PARAMETER.findall(created.partition("\nas\n")[0]))


def is_common(procedure: str) -> bool:
    """Return whether a procedure is common to all feeds; else each feed has its own."""
    return f"{procedure}.procedure" in INSTALL


def call(
    schema: str,
    procedure: str,
    arguments: Mapping[str, Any],
    shard_key_type: str = "int",
    suffix: str = "",
) -> tuple[Any, ...]:
    """
    Return the batch that calls one of our procedures, and behind it its values, as a session takes them.

    :param procedure: for example ``setup_feed``, or ``read_feed:`` with the feed's name behind it.
    :param arguments: by name; None keeps the procedure's default. Declares the types, because the driver
        guesses them from the values, and never binary for a null.
    :param suffix: of the names of variables, which a batch has once.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    types = parameter_types(procedure.partition(":")[0])
    for name in given.keys() & _FREE_TEXTS:
        given[name] = storable(given[name], int(types[name].removeprefix("nvarchar(").rstrip(")")))
    declared = ", ".join(f"@{name}{suffix} {types[name]} = ?" for name in given)
    named = ", ".join(f"@{name} = @{name}{suffix}" for name in given)
    declare = f"declare {declared}; " if given else ""
    text = f"{declare}exec {quote(schema)}.{quote(procedure)} {named}".rstrip()
    return text.replace("<<shard_type>>", shard_key_type), *given.values()
