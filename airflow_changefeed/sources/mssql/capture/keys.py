# SPDX-License-Identifier: Apache-2.0
"""
Keys of a table as values between statements: how each type leaves the server unchanged and comes back.

A range of a key compares each column with a variable of the column's own type, so that the server seeks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from airflow_changefeed.core.feed import Column
from airflow_changefeed.sources.key_conditions import KeyCondition
from airflow_changefeed.sources.mssql.feed.types import Declared, parse, stored_type
from airflow_changefeed.sources.mssql.names import quote

#: Most characters of an nvarchar that is not max.
_MOST_WIDE = 4_000


@dataclass(frozen=True)
class KeyForm:
    """
    How values of a type travel.

    :param select: T-SQL of the value, with ``{c}`` for the column; gives a number, text or bytes.
    :param variable: type of the variable that takes it back.
    :param back: T-SQL of the variable's value, with ``?`` for what was selected.
    :param compared: T-SQL that the column is compared with, with ``{v}`` for the variable and ``{n}`` for the
        column's collation.
    """

    select: str
    variable: str
    back: str
    compared: str = "{v}"


def _number(found: Declared) -> KeyForm:
    return KeyForm("convert(bigint, {c})", found.name, "?")


def _float(found: Declared) -> KeyForm:
    # The driver takes and gives all 53 bits.
    return KeyForm("convert(float, {c})", found.name, "?")


def _decimal(found: Declared) -> KeyForm:
    type_ = f"{found.name}({found.length}, {found.scale})"
    return KeyForm("convert(varchar(60), {c})", type_, f"convert({type_}, convert(varchar(60), ?))")


def _money(found: Declared) -> KeyForm:
    # As a decimal: the text of money itself is rounded unless its style is known to the server.
    back = f"convert({found.name}, convert(decimal(19, 4), convert(varchar(60), ?)))"
    return KeyForm("convert(varchar(60), convert(decimal(19, 4), {c}))", found.name, back)


def _time(found: Declared) -> KeyForm:
    type_ = found.name if found.length is None else f"{found.name}({found.length})"
    return KeyForm("convert(varchar(60), {c}, 121)", type_, f"convert({type_}, convert(varchar(60), ?), 121)")


def _uuid(found: Declared) -> KeyForm:
    return KeyForm("convert(varchar(36), {c})", found.name, f"convert({found.name}, convert(varchar(36), ?))")


def _same(found: Declared) -> KeyForm:
    type_ = f"{found.name}({found.length})"
    return KeyForm("{c}", type_, f"convert({type_}, ?)")


def _narrow(found: Declared) -> KeyForm:
    # A variable has the code page of the database: only Unicode keeps the characters of the column's own.
    type_ = f"nvarchar({min(found.length or 1, _MOST_WIDE)})"
    compared = f"convert({found.name}({found.length}), {{v}} collate {{n}})"
    return KeyForm(f"convert({type_}, {{c}})", type_, f"convert({type_}, ?)", compared)


def _hierarchy(found: Declared) -> KeyForm:
    back = "convert(hierarchyid, convert(varbinary(892), ?))"
    return KeyForm("cast({c} as varbinary(892))", found.name, back)


_FORMS: dict[str, Callable[[Declared], KeyForm]] = {
    **dict.fromkeys(("bit", "tinyint", "smallint", "int", "bigint"), _number),
    **dict.fromkeys(("float", "real"), _float),
    **dict.fromkeys(("decimal", "numeric"), _decimal),
    **dict.fromkeys(("money", "smallmoney"), _money),
    **dict.fromkeys(("date", "time", "datetime", "datetime2", "smalldatetime", "datetimeoffset"), _time),
    "uniqueidentifier": _uuid,
    **dict.fromkeys(("nchar", "nvarchar", "binary", "varbinary"), _same),
    **dict.fromkeys(("char", "varchar"), _narrow),
    "hierarchyid": _hierarchy,
}


def key_form(column: Column) -> KeyForm | None:
    """Return how values of a column travel; None if they cannot travel unchanged."""
    found = parse(Column(column.name, stored_type(column)))
    form = None if found.is_max else _FORMS.get(found.name)
    return form and form(found)


@dataclass(frozen=True)
class KeyColumn:
    """A column of a primary key, in the order of its index."""

    column: Column
    form: KeyForm
    collation: str | None = None
    is_descending: bool = False

    @property
    def name(self) -> str:
        """The column of table ``t`` in a statement."""
        return f"t.{quote(self.column.name)}"

    @property
    def selected(self) -> str:
        """What is selected of it as a value that travels."""
        return self.form.select.replace("{c}", self.name)

    @property
    def ordered(self) -> str:
        """How the index orders by it."""
        return f"{self.name} desc" if self.is_descending else self.name

    def declared(self, variable: str) -> str:
        """Return the declaration of a variable that takes a value back."""
        return f"{variable} {self.form.variable} = {self.form.back}"

    def compared(self, operator: str, variable: str) -> str:
        """
        Compare the column with a variable.

        :param operator: as in the index's order: ``<`` is before it.
        """
        if self.is_descending:
            operator = operator.translate(_FLIPPED)
        value = self.form.compared.replace("{v}", variable).replace("{n}", self.collation or "")
        return f"{self.name} {operator} {value}"


_FLIPPED = str.maketrans("<>", "><")


def declarations(keys: Sequence[KeyColumn], prefix: str) -> list[str]:
    """Return the declarations of the variables ``@<prefix>0`` and on, which take a key back."""
    return [key.declared(f"@{prefix}{number}") for number, key in enumerate(keys)]


def bound(keys: Sequence[KeyColumn], operator: str, prefix: str) -> str:
    """
    Return the condition that a row's key is before or behind the variables' key, in the index's order.

    With several columns the first one is compared by itself, too, so that the server can seek by it.

    :param operator: ``>`` or ``<=``; equal keys belong to what is before.
    """
    variables = [f"@{prefix}{number}" for number in range(len(keys))]
    strict = operator[0]
    condition = keys[-1].compared(operator, variables[-1])
    for key, variable in reversed(list(zip(keys[:-1], variables[:-1], strict=True))):
        condition = f"({key.compared(strict, variable)} or ({key.compared('=', variable)} and {condition}))"
    if len(keys) == 1:
        return condition
    return f"{keys[0].compared(f'{strict}=', variables[0])} and {condition}"


def condition_declarations(keys: Sequence[KeyColumn], conditions: Sequence[KeyCondition]) -> list[str]:
    """Return the declarations of the variables ``@w0`` and on, which take the values of conditions."""
    by_name = {key.column.name: key for key in keys}
    return [by_name[one.column].declared(f"@w{number}") for number, one in enumerate(conditions)]


def condition_values(conditions: Sequence[KeyCondition]) -> list[int | str]:
    """Return the values of conditions as they travel: whole numbers, the others as text."""
    # Not 1E-7, which is no decimal for the server.
    texts = [f"{one.value:f}" if isinstance(one.value, Decimal) else one.value for one in conditions]
    return [one if isinstance(one, int) else str(one) for one in texts]


def conditions_sql(conditions: Sequence[KeyCondition]) -> list[str]:
    """Return what compares the columns of conditions with their variables."""
    return [f"t.{quote(one.column)} {one.operator} @w{number}" for number, one in enumerate(conditions)]
