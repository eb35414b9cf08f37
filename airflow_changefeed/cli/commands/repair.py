# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed capture repair`` and ``repairs``: recorded values that cannot be exported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.utils.platform import getuser

from airflow_changefeed.cli.command import Row, command, echo, open_feeds, seen_version, show
from airflow_changefeed.core.capture import RepairWay
from airflow_changefeed.core.codec import encode
from airflow_changefeed.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_changefeed.core.capture import UnexportableValue

#: Exit status if such values were found.
_FOUND = 1
_HOW_TO = (
    "First correct the values in the captured table, or stop capturing the column (capture refresh "
    "--without); otherwise the next change records them again. Then repair the events with --present, "
    "--cast, --null or --value"
)
#: Columns of a value or its repair that fit a screen, and the maximum width of each.
_SHORT, _LONGEST = ("event", "table", "image", "column", "expected", "value", "before", "after", "note"), 40


@command
def repair(args: Namespace) -> None:
    """Show recorded values that cannot be exported; given a way, replace them after confirmation."""
    chosen = {"event": args.event, "column": args.column}
    with open_feeds(args.conn_id) as source:
        version = source.capture(args.name).resource_version
        way, value = _way(args)
        if way is None:
            found = source.unexportable_values(args.name, **chosen)
            show([_unexportable(one) for one in found], args.output, _short_value)
            echo(f"Values of capture {args.name} that cannot be exported: {len(found)}")
            if found:
                echo(_HOW_TO)
                raise SystemExit(_FOUND)
            return
        if not args.note:
            raise InvalidArgumentError("--note is missing; explain why these values are correct")
        chosen |= {"note": args.note, "by": getuser()}
        planned = source.repair_capture(args.name, way, value, dry_run=True, **chosen)
        if not planned:
            echo(f"All such values of capture {args.name} can be exported; nothing was repaired")
            return
        if args.resource_version is None and not args.yes:
            show([encode(one) for one in planned], "table", _short_value, on_error=True)
        question = f"Repair {len(planned)} recorded values of capture {args.name}?"
        version = seen_version(args, version, question, "Nothing was repaired")
        done = source.repair_capture(args.name, way, value, resource_version=version, **chosen)
        show([encode(one) for one in done], args.output, _short_value)
        echo(f"Repaired {len(done)} recorded values of capture {args.name}")


def _way(args: Namespace) -> tuple[RepairWay | None, str | None]:
    """Return the way to repair and the given value."""
    given = [way for way in RepairWay if getattr(args, way.value) not in (None, False)]
    if len(given) > 1:
        names = " and ".join(f"--{way.value}" for way in given)
        raise InvalidArgumentError(f"{names} cannot be combined; use only one of them")
    return next(iter(given), None), args.value


@command
def list_repairs(args: Namespace) -> None:
    """Show all repairs."""
    with open_feeds(args.conn_id) as source:
        names = [info.name for info in source.captures()] if args.name is None else [args.name]
        found = [one for name in names for one in source.capture_repairs(name)]
        show([encode(one) for one in found], args.output, _short_value)
        echo(f"Captures: {len(names)}; repaired values: {len(found)}")


def _unexportable(value: UnexportableValue) -> Row:
    """Return a value that cannot be exported as a JSON object."""
    return {
        "event": value.event,
        "ulid": None if value.ulid is None else str(value.ulid),
        "table": value.table,
        "image": value.image,
        "column": value.column,
        "declared": value.declared,
        "expected": value.expected,
        "found": value.found,
        "value": value.literal,
    }


def _short_value(row: Row) -> Row:
    texts = {name: str(row[name]) for name in _SHORT if name in row}
    return {
        name: text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..." for name, text in texts.items()
    }
