# SPDX-License-Identifier: Apache-2.0
"""
SQL as files: one object each, with tokens ``<<name>>`` that are filled in one pass.

Tokens are ``<<name>>`` because ``{{ }}``, ``$(x)`` and ``${x}`` belong to Jinja, sqlcmd and Flyway.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

_TOKEN = re.compile(r"<<(\w+)>>")


@cache
def load_sql(name: str) -> str:
    """
    Return the text of a file below this package.

    :param name: for example ``"sqlite/feed/outbox.table.sql"``.
    """
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def fill(template: str, tokens: Mapping[str, str]) -> str:
    """
    Replace each ``<<token>>`` by its value, once: values are not looked at again.

    :raises KeyError: the template has a token without a value.
    """
    return _TOKEN.sub(lambda match: tokens[match.group(1)], template)
