# SPDX-License-Identifier: Apache-2.0
"""Fields of our tasks: those in a serialized DAG besides those of every task, and those that are names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_changefeed.hooks.changefeed_arguments import is_template

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    _Base = BaseOperator
else:
    _Base = object


_NAMES = (
    "changefeed_conn_id",
    "consumer",
    "exclude",
    "feed",
    "feeds",
    "output_path",
    "path",
    "states_path",
    "table",
)


class KeepsNames:
    """
    Has names that stay texts.

    With ``render_template_as_native_obj`` Airflow makes numbers of digits, and other values of other texts,
    also of those without a template.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _NAMES:
            value = _as_name(self.__dict__.get(name), value)
        super().__setattr__(name, value)


def _as_name(before: Any, value: Any) -> Any:
    """
    Return the name that a rendered value is.

    :param before: the same before it was rendered: a text without a template is the name. None for what the
        DAG gives.
    """
    if before is None:
        return value
    if isinstance(value, list) and isinstance(before, (list, tuple)) and len(before) == len(value):
        return [_as_name(*pair) for pair in zip(before, value, strict=True)]
    if isinstance(before, str) and not isinstance(value, str) and not is_template(before):
        return before
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class NamesConnections(KeepsNames, _Base):
    """
    A task whose serialized form names its connections, which are not templates.

    The page in Airflow's UI finds by it which feeds there are; ids of connections are not secret.
    """

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        """Return the names of what is serialized."""
        fields = super().get_serialized_fields()  # type: ignore[no-untyped-call] # Airflow's
        return frozenset(fields) | {"changefeed_conn_id", "path_conn_id", "catalog_conn_id"}
