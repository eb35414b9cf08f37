# SPDX-License-Identifier: Apache-2.0
"""What a task does, on Spark or in the process of whoever planned: write parts, and say what was written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_changefeed.core.feed import parse_shard, shard_text
from airflow_changefeed.core.plan import ExportOptions, Plan
from airflow_changefeed.core.unit import range_from, range_to
from airflow_changefeed.exceptions import IncompleteReadError, InvalidArgumentError, SchemaChangedError
from airflow_changefeed.export.progress import TaskProgress
from airflow_changefeed.output.layout import Layout, parse_unit, unit_key
from airflow_changefeed.output.store import StagedFile
from airflow_changefeed.output.structs import schema_texts
from airflow_changefeed.sources.base import FeedReader
from airflow_changefeed.storage.files import Files


@dataclass(frozen=True)
class PlannedPart:
    """
    A part of a unit.

    :param unit: number of the unit in the plan, from 0.
    :param rows: estimated.
    :param content: JSON values, all that its task must know.
    """

    unit: int
    rows: int
    content: Mapping[str, Any]


def plan_parts(plan: Plan) -> list[PlannedPart]:
    """Return the parts of all units with rows, those of a shard in their order."""
    parts = []
    for number, planned in enumerate(plan.units):
        for part, range_ in enumerate(planned.parts):
            content = {
                "unit": number,
                "part": part,
                "shard": shard_text(planned.unit.shard),
                "folder": unit_key(planned.unit),
                **range_to(range_),
            }
            parts.append(PlannedPart(number, planned.rows // len(planned.parts), content))
    return parts


def task_name(number: int, task_attempt: int) -> str:
    """Return the name of a task's own folder; its twins and retries have others."""
    return f"{number:05d}-{task_attempt}"


def write_parts(
    source: FeedReader,
    files: Files,
    *,
    feed: str,
    attempt: int,
    options: ExportOptions,
    task: str,
    parts: Iterable[Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """
    Write parts one after the other, and yield facts as JSON values: the schema, then one for each file.

    :param source: open, and left so.
    :param task: see :func:`task_name`.
    :param parts: the contents of :func:`plan_parts`.
    :raises ChangefeedError: a part cannot be read or written.
    """
    from airflow_changefeed.capture.shapes import shaped_schema
    from airflow_changefeed.export.range_writer import write_part

    home = f"{Layout(files.root, feed).writing(attempt)}/{task}"
    progress = TaskProgress(files, f"{home}/progress.json")
    schema = source.schema(feed)
    yield {"schema": schema_texts(shaped_schema(schema, options.shape, feed=feed))}
    for part in parts:
        for facts, upload in write_part(
            source,
            files,
            _folder(files, Layout(files.root, feed), part, attempt, home),
            schema=schema,
            feed=feed,
            shard=parse_shard(part["shard"]),
            range_=range_from(part),
            part=part["part"],
            options=options,
            progress=partial(progress.add, part["shard"]),
        ):
            path = "" if upload else f"writing/{task}/{part['folder']}/{facts.name}"
            yield StagedFile(part["unit"], path, facts, upload).to_dict()
    progress.write()


def _folder(files: Files, layout: Layout, part: Mapping[str, Any], attempt: int, home: str) -> str:
    """Return where a part's files are written: the task's own folder, or unseen where they stay."""
    if not files.has_uploads:
        return f"{home}/{part['folder']}"
    unit = parse_unit(parse_shard(part["shard"]), part["folder"].rpartition("/")[2])
    if unit is None:
        raise InvalidArgumentError(f"{part['folder']} names no unit")
    return layout.placed(unit, attempt)


def gather(facts: Iterable[dict[str, Any]], feed: str, tasks: int) -> tuple[list[StagedFile], dict[str, str]]:
    """
    Sort out what tasks yielded.

    :param tasks: how many there were.
    :return: the files, and column name to Arrow type.
    :raises IncompleteReadError: a task did not report.
    :raises SchemaChangedError: two tasks saw different columns.
    """
    written: list[StagedFile] = []
    schemas: list[dict[str, str]] = []
    for value in facts:
        if "schema" in value:
            schemas.append(value["schema"])
        else:
            written.append(StagedFile.from_dict(value))
    if len(schemas) != tasks:
        raise IncompleteReadError(f"{tasks} tasks ran, {len(schemas)} of them reported; retry")
    if any(schema != schemas[0] for schema in schemas):
        raise SchemaChangedError(f"the columns of feed {feed!r} changed while it was read; retry", feed=feed)
    return written, schemas[0]
