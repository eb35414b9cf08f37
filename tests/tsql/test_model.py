# SPDX-License-Identifier: Apache-2.0
"""
The T-SQL locks what the model of the races says, and the model takes the steps of the T-SQL.

Without it the model could not fail for a change of the product, and a hint could go unnoticed: what a hint
prevents shows on a busy server only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import groupby

import pytest

from tests.integration.model.database import Database
from tests.integration.model.drains import drain, seal_shard
from tests.integration.model.locks import Work
from tests.integration.model.programs import EVENT, PURGE, SEAL, Maker, maker, serialized, writer
from tests.integration.model.readers import read
from tests.integration.model.remedies import ALL, Remedies
from tests.integration.model.scheduler import Actor, Run
from tests.tools.tsql.assemblies import PROJECT
from tests.tools.tsql.checker import Checker
from tests.tools.tsql.objects import objects
from tests.tsql.locks import CONSUMERS, HINTS, INSIDE, MODELLED, OUTSIDE, SHARED_TABLES, Row

FOLDER = PROJECT / "airflow_changefeed" / "sql" / "mssql"
#: Of the model's remedies those that no lock, no hint and no order of statements makes: that an outbox knows
#: its transactions, and that they are ordered by their last number.
OTHER_REMEDIES = {"transactions", "highest"}
Steps = dict[str, tuple[str, ...]]


@pytest.fixture(scope="module")
def steps(checker: Checker) -> Steps:
    """Read all T-SQL once."""
    return {name: checker.lock_steps(sql) for name, sql in objects().items()}


def _remedy(name: str) -> str:
    told = re.search(rf":param {name}: (.*?)(?=:param|\Z)", Remedies.__doc__ or "", re.DOTALL)
    assert told, f"{name} is not in the docstring of Remedies"
    return f"{name}: {' '.join(told[1].split())}"


def complaint(name: str, rows: Sequence[Row], found: Sequence[str]) -> str:
    """Say what a procedure no longer does, what it does instead, and what it was for; or nothing."""
    expected = [row.tsql for row in rows]
    lines: list[str] = []
    remedies: dict[str, None] = {}
    modelled: dict[str, None] = {}
    for tag, begin, end, new_begin, new_end in SequenceMatcher(a=expected, b=list(found)).get_opcodes():
        if tag == "equal":
            continue
        lines += [f"  - {text}" for text in expected[begin:end]]
        lines += [f"  + {text}" for text in found[new_begin:new_end]]
        # Where something was added only, what stands around it.
        for row in rows[begin:end] or rows[max(begin - 1, 0) : begin + 1]:
            remedies |= dict.fromkeys(row.remedies)
            modelled |= dict.fromkeys(row.model)
    if not lines:
        return ""
    lines = [f"{name} no longer locks what tests/tsql/locks.py says:", *lines]
    if modelled:
        lines.append(f"In the model of the races this is: {', '.join(modelled)}.")
    lines += [f"It stands for the remedy {_remedy(each)}" for each in remedies]
    lines.append(
        "Take the change back; or make the step in tests/integration/model do what the statement does now, "
        "see its tests pass, and then change the table, and ADR 0005 where it describes the step."
        if name in MODELLED
        else 'Take the change back; or see that no race follows (ADR 0005, "Locks"), then change both.'
    )
    return "\n".join(lines)


@pytest.mark.parametrize("name", MODELLED)
def test_a_procedure_locks_what_the_model_says(name: str, steps: Steps) -> None:
    """Each statement, hint, lock and setting, in the order of the text."""
    told = complaint(name, MODELLED[name], steps[name])
    assert not told, told


@pytest.mark.parametrize("name", [*CONSUMERS, *HINTS])
def test_a_procedure_beside_the_model_locks_what_the_table_says(name: str, steps: Steps) -> None:
    """The model does not have it; that a hint goes is noticed all the same."""
    expected = CONSUMERS.get(name) or HINTS[name]
    is_told = _is_lock if name in HINTS else _is_told
    told = complaint(name, [Row(step) for step in expected], [step for step in steps[name] if is_told(step)])
    assert not told, told


def _is_told(step: str) -> bool:
    """Return whether the table of consumers has a step."""
    is_plain_read = step.startswith("select ") and not _is_lock(step)
    return not is_plain_read and step not in {"rollback", INSIDE[0].tsql, INSIDE[1].tsql}


def _is_lock(step: str) -> bool:
    """Return whether a step says how something is locked, and not only that."""
    if step in {row.tsql for row in OUTSIDE}:
        return False
    return bool(re.search(r" with \(| by \w+ join|lock_escalation|= off|^(set|save|lock|unlock) ", step))


def test_no_lock_is_without_a_table(steps: Steps) -> None:
    """All files are read; one that says how it locks is in a table."""
    files = {str(path.relative_to(FOLDER))[: -len(".sql")] for path in FOLDER.rglob("*.sql")}
    others = {name for name in files if name.endswith(".fragment")}
    assert steps.keys() == files - others
    locking = {name for name, found in steps.items() if any(map(_is_lock, found))}
    assert locking - {*MODELLED, *CONSUMERS, *HINTS} == set()


def test_few_procedures_share_a_temporary_table() -> None:
    """Each session keeps plans of its own for one that uses what its caller has made (ADR 0005)."""
    found = {}
    for name, sql in objects().items():
        code = re.sub(r"--.*", "", sql)
        made = set(re.findall(r"create table (#\w+)", code))
        if others := set(re.findall(r"#\w+", code)) - made:
            found[name] = others
    assert found == SHARED_TABLES


def test_each_remedy_is_bound() -> None:
    """What the model can be without stands in some procedure."""
    bound = {remedy for rows in MODELLED.values() for row in rows for remedy in row.remedies}
    assert bound == vars(ALL).keys() - OTHER_REMEDIES


def _called(name: str, kind: str) -> str:
    files = (f"feed/{kind}/{name}.procedure", f"feed/{name}.procedure", f"feed/{kind}/{name}.function")
    found = [each for each in files if each in MODELLED]
    assert found, (
        f"{name} is called, and is not in the table: write it there, or that the model leaves it out"
    )
    return found[0]


def _expected(name: str, kind: str, without: set[str], is_new: list[bool]) -> Iterator[str]:
    """Go over the steps of the model for a procedure and those that it calls, as the tables have them."""
    for row in MODELLED[name]:
        call = row.tsql.removeprefix("exec ")
        if call != row.tsql and row.is_followed and f"{name} {call}" not in without:
            yield from _expected(_called(call, kind), kind, without, is_new)
        elif is_new[0] or not row.is_new_shard:
            yield from row.model
            is_new[0] &= "inserts state" not in row.model


def _taken(before: Sequence[Maker], one: Maker) -> list[str]:
    """Return what an actor of the model does, alone."""
    database = Database(ALL)
    started = [each(database, f"before {place}") for place, each in enumerate(before)]
    run = Run(database, {"one": one(database, "one")}, started, ())
    found = []
    while run.waiting():
        found.append(run.waiting()["one"].partition(":")[0])
        run.advance("one")
    return [each for each in found if each != "notes"]


def _seals_a_shard(database: Database, name: str) -> Actor:
    return (yield from seal_shard(database, Work(name), 1, 5))


DRAINED = (writer(EVENT), maker(drain, shard=1))
_SEAL_SHARD, _SEAL = "feed/outbox/seal_shard.procedure", "feed/seal_feed.procedure"


@pytest.mark.parametrize("is_new", [True, False], ids=["new shard", "old shard"])
@pytest.mark.parametrize(
    ("name", "kind", "one"),
    [
        ("feed/outbox/drain_shard.procedure", "outbox", maker(drain, shard=1)),
        (_SEAL_SHARD, "outbox", _seals_a_shard),
        ("feed/seal_feed.procedure", "outbox", SEAL),
        ("feed/serialized/lock.procedure", "serialized", serialized(0)),
        ("feed/serialized/seal_shard.procedure", "serialized", _seals_a_shard),
    ],
    ids=["drain", "seal of a shard", "seal", "serialized writer", "seal of serialized writers"],
)
def test_the_model_takes_the_steps_of_the_t_sql(name: str, kind: str, one: Maker, is_new: bool) -> None:
    """One after the other, with those of the called procedures, whether or not a shard is new."""
    before = () if is_new else DRAINED
    # A seal finds nothing in a shard that it has just drained.
    without = {f"{_SEAL_SHARD} order_page"} if name == _SEAL else set()
    taken = _taken((*before, *([writer(EVENT)] if kind == "outbox" else [])), one)
    if kind == "serialized":
        # What it has no outbox for, and the user's own statements.
        taken = [step for step in taken if not step.endswith(" outbox") and step != "draws bound"]
        taken = taken[1:-2] if taken[0] == "begins" else taken
    _compare(taken, _expected(name, kind, without, [is_new]))


@pytest.mark.parametrize(
    ("name", "one"),
    [
        ("feed/read_feed.procedure", maker(read, shard=1, pages=1)),
        ("feed/purge_feed.procedure", PURGE),
    ],
    ids=["reader", "purge"],
)
def test_readers_and_purges_of_the_model_take_the_steps_of_the_t_sql(name: str, one: Maker) -> None:
    """Of events that are in the feed and below a seal."""
    taken = _taken((*DRAINED, SEAL), one)
    _compare(taken, _expected(name, "outbox", {f"{name} drain_shard"}, [False]))


def _compare(taken: Sequence[str], expected: Iterator[str]) -> None:
    """Compare two lists of steps; one that is repeated counts once."""
    ours, theirs = [[step for step, _ in groupby(each)] for each in (taken, expected)]
    assert ours == theirs, (
        "the model (left) takes other steps than the T-SQL (right): see tests/tsql/locks.py"
    )
