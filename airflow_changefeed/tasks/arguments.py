# SPDX-License-Identifier: Apache-2.0
"""
Arguments of tasks: what each may be, all wrong ones named at once, and which are stored in the DAG.

They are read twice: when the DAG is parsed, all but templates and other tasks' results; and when the task
runs, all of them.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.cursor import check_consumer
from airflow_changefeed.core.export_plan import BATCH, MODES, ExportOptions
from airflow_changefeed.core.values import (
    Reader,
    duration,
    optional,
    parse_time,
    read_value,
    read_values,
    whole,
)
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.tasks.context import NOTHING, airflow_errors, run_window

#: Rows below which a task works without Spark.
LOCAL_BELOW = whole(0, unit="rows")
#: How old a frontier or snapshot may be.
MAX_AGE = duration()
_UNIT = optional(duration())


def check_arguments(
    task: Any,
    *checks: tuple[Any, ...],
    values: Mapping[str, Reader] = MappingProxyType({}),
    problems: Sequence[str] = (),
) -> None:
    """
    Refuse a task whose arguments are wrong; template fields that are not rendered yet are passed over.

    :param checks: a function that raises InvalidArgumentError, and the values that it is called with.
    :param values: arguments that are no templates, and are put in place as they are read.
    :param problems: what else is wrong.
    :raises InvalidArgumentError: names all of them.
    :raises AirflowFailException: the same for a mapped task, which Airflow makes only when it runs, and would
        make again and again.
    """
    found = list(problems)
    # Airflow does not render these: a template there is as wrong as any other text.
    rendered = [getattr(task, name, None) for name in task.template_fields]
    for check, *given in checks:
        if any(is_template(value) and any(value is one for one in rendered) for value in given):
            continue
        try:
            check(*given)
        except InvalidArgumentError as problem:
            found += problem.facts.get("problems", [problem.message])
    found += read_values(task, values)
    is_mapped = getattr(task, "_BaseOperator__from_mapped", False)
    with airflow_errors() if is_mapped else nullcontext():
        InvalidArgumentError.collect(f"{type(task).__name__} {task.task_id!r}", found)


def is_template(value: object) -> bool:
    """Whether a value, or a part of it, is known only when the task runs: Jinja, or another task's result."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(is_template(part) for part in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(is_template(part) for part in value)
    return hasattr(value, "iter_references")


def check_name(name: str, value: object) -> None:
    """Refuse a missing name, and a value that is not a text."""
    if value is None or (isinstance(value, str) and not value.strip()):
        raise InvalidArgumentError(f"{name} is missing")
    if not isinstance(value, str):
        raise InvalidArgumentError(
            f"{name} must be a text, not {value!r}. If its template gives a text and the DAG has "
            f"render_template_as_native_obj, quote it twice: {name}=\"'{{{{ ... }}}}'\""
        )


def check_program_path(program_path: object, path: object) -> None:
    """Refuse a place for programs within the output, unless it is the output's own; None and "" are valid."""
    place, output = _place(program_path), _place(path)
    if program_path and place != output and f"{place}/".startswith(f"{output}/"):
        raise InvalidArgumentError(
            f"program_path {program_path!r} lies in the output {path!r}, so everybody who can write to "
            "the output could run code with the job's secrets. Choose a place outside; or, to accept "
            "the risk, the output's path itself"
        )


def need_program_path(program_path: object) -> None:
    """Refuse a job whose driver runs elsewhere, and has no place to fetch its program from."""
    if not program_path:
        raise InvalidArgumentError(
            "program_path is missing: a driver on another machine fetches the job's program from "
            "there, and everybody who can write there can run code with the job's secrets. Choose a "
            "place that writers of the output cannot write to; or, to accept the risk, the output's "
            "path"
        )


def _place(path: object) -> str:
    """Return a path in a form in which the same place has the same text, as far as that is known."""
    scheme, separator, rest = str(path).partition("://")
    if separator and scheme != "file":
        scheme = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}.get(scheme, scheme)
        return f"{scheme}://{posixpath.normpath(rest)}"
    return os.path.realpath(os.path.expanduser(rest or str(path).removeprefix("file:")))


def check_consumer_name(consumer: object) -> None:
    """Refuse an invalid name of a consumer."""
    check_name("consumer", consumer)
    check_consumer(consumer)


def check_window(window_start: object, window_end: object) -> None:
    """Refuse an invalid window; None is valid."""
    run_window({}, window_start, window_end)


def parse_unit(unit: object) -> timedelta | None:
    """Read the length of an export unit; None for none, and for a template that has nothing to say."""
    length: timedelta | None = read_value("unit", None if unit in NOTHING else unit, _UNIT)
    if length is not None and length % timedelta(milliseconds=1):
        raise InvalidArgumentError(f"unit must be in whole milliseconds, not {unit!r}")
    return length


def parse_at(value: object) -> datetime | None:
    """Read the time ``at``, None if a template gives none; raise InvalidWindowError if it is not a time."""
    at: datetime | None = read_value("at", None if value in NOTHING else value, optional(parse_time))
    return at


def check_mode(mode: object, of_windows: Sequence[str]) -> None:
    """Refuse an unknown mode, and a batch with arguments that mean nothing for it, by their names."""
    if mode not in MODES:
        raise InvalidArgumentError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    if mode == BATCH and of_windows:
        problems = [
            f"{name} cannot be given with mode='batch', which has no window: omit it" for name in of_windows
        ]
        raise InvalidArgumentError("; ".join(problems), problems=problems)


def with_options(options: object, **given: object) -> object:
    """Put options that were given, not None, into the others; raise InvalidArgumentError if those differ."""
    given = {name: value for name, value in given.items() if value is not None}
    if not given or options is None:
        return given or options
    if isinstance(options, ExportOptions):
        known, defaults = asdict(options) | {"shape": options.shape.value}, asdict(ExportOptions())
        said = {name: value for name, value in known.items() if value != defaults[name]}
    elif isinstance(options, Mapping):
        known = said = dict(options)
    else:
        raise InvalidArgumentError(
            f"{', '.join(given)}: options are known only when the task runs, so set it in options"
        )
    for name, value in given.items():
        if said.get(name, value) != value:
            raise InvalidArgumentError(
                f"{name} is {value!r}, but options has {said[name]!r}: give only one of them"
            )
    return {**known, **given}


def parse_options(options: object) -> ExportOptions:
    """Read options, or a dict of their arguments; raise InvalidArgumentError if they are wrong."""
    if isinstance(options, ExportOptions):
        return options
    try:
        if options is not None and not isinstance(options, Mapping):
            raise TypeError(f"give an ExportOptions or a dict, not {options!r}")
        return ExportOptions(**(options or {}))
    except TypeError as problem:
        raise InvalidArgumentError(f"options: {problem}") from problem


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
