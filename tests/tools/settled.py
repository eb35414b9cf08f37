# SPDX-License-Identifier: Apache-2.0
"""Which questions that ADR 0005 leaves open a run on a server has answered, and by which tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.tools.check_report import Outcome

_CONTRACT = "tests.integration.contract."
_MSSQL = "tests.integration.mssql."
_LOCKING = f"{_MSSQL}test_locking::"
_PROBES = f"{_MSSQL}test_probes::"
#: How many answers to a question the table shows.
_LINES = 8


@dataclass(frozen=True)
class Point:
    """
    A question of ADR 0005.

    :param tests: patterns of the tests that answer it, all of which must pass; one that matches none leaves
        it open.
    """

    name: str
    question: str
    tests: tuple[str, ...]

    def verdict(self, outcomes: Sequence[Outcome], *, has_locks: bool) -> str:
        """
        Say what a run has shown; what was skipped shows nothing.

        :param has_locks: whether the server obeys lock hints.
        """
        found = [self._found(outcomes, (pattern,)) for pattern in self.tests]
        passed = [[one for one in each if one.result == "passed"] for each in found]
        if any(one.result == "failed" for each in found for one in each):
            return "settled: NO"
        if not all(passed):
            return "not asked"
        return (
            f"settled: yes ({sum(map(len, passed))} of {sum(map(len, found))} tests)"
            if has_locks
            else "results only"
        )

    def answers(self, outcomes: Sequence[Outcome]) -> list[str]:
        """Return what the server answered, what failed, and why something could not be asked."""
        found = self._found(outcomes, self.tests)
        said = [
            (one.answer or f"{one.result}: {one.message}").split("\n")[0]
            for one in found
            if one.answer or one.message
        ]
        shown = list(dict.fromkeys(said)) if found else ["no test of it ran"]
        return shown[:_LINES] + ([f"and {len(shown) - _LINES} more"] if len(shown) > _LINES else [])

    @staticmethod
    def _found(outcomes: Sequence[Outcome], patterns: Sequence[str]) -> list[Outcome]:
        patterns = [pattern.replace("[", "[[]") for pattern in patterns]
        return [one for one in outcomes if any(fnmatchcase(one.name, pattern) for pattern in patterns)]


POINTS = (
    Point(
        "R1, R6",
        "a drain passes open transactions, and tears none",
        (
            f"{_LOCKING}test_an_open_transaction_around_others*",
            f"{_CONTRACT}test_races::*mssql*",
            f"{_CONTRACT}test_capture_transactions::*mssql*",
        ),
    ),
    Point(
        "R2",
        "one shard's drain hides no row of another, and locks rows alone",
        (f"{_LOCKING}test_a_large_transaction*",),
    ),
    Point(
        "R5",
        "no caller's isolation level shows what is not committed",
        (f"{_LOCKING}test_no_isolation_level*",),
    ),
    Point(
        "R7",
        "a shard first used beside a seal begins above it",
        (f"{_LOCKING}test_a_shard_first_used*", f"{_CONTRACT}test_seal::*first_used*mssql*"),
    ),
    Point(
        "R8, R9",
        "seals and readers wait for open serialized writers",
        (f"{_CONTRACT}test_serialized::*mssql*", f"{_CONTRACT}test_races::*serialized*mssql*"),
    ),
    Point(
        "captures",
        "a check of a capture beside an open transaction stalls nobody, with row versions or without",
        (f"{_LOCKING}test_a_capture_is_checked*", f"{_CONTRACT}test_capture_gaps::test_an_open*mssql*"),
    ),
    Point("R12", "a purge beside a reader skips nothing", (f"{_LOCKING}test_a_reader_gets*",)),
    Point(
        "R13",
        "a rollback to a savepoint gives no ULID twice",
        (f"{_MSSQL}test_bad_calls::*", f"{_CONTRACT}test_serialized::*mssql*"),
    ),
    Point(
        "readpast",
        "also under read committed snapshot",
        (f"{_LOCKING}test_an_open_transaction*read committed snapshot*",),
    ),
    Point(
        "optimized locking",
        "readpast where locks are on transactions",
        (
            f"{_LOCKING}test_an_open_transaction*optimized locking*",
            f"{_LOCKING}*first_used*optimized locking*",
            f"{_LOCKING}test_two_sessions*optimized locking*",
        ),
    ),
    Point(
        "cursors",
        "who has checked a cursor holds it to the end of the transaction",
        (f"{_LOCKING}test_two_sessions*",),
    ),
    Point(
        "ends of ranges",
        "a drain waits for no open writer behind its end",
        (f"{_LOCKING}test_a_drain_waits*",),
    ),
    Point(
        "a kill",
        "without a checkpoint it makes no gap, whatever sys.partitions.rows says then",
        (f"{_PROBES}test_a_kill*",),
    ),
    Point(
        "enabling",
        "a capture of a big table stops neither writers nor readers",
        tuple(f"{_PROBES}test_enabling*{each} row versions*" for each in ("with", "without")),
    ),
    Point(
        "upgrades",
        "a table with an open writer is named, and stops no other",
        (f"{_PROBES}test_an_upgrade*",),
    ),
    Point("lock memory", "a statement may change millions of rows", (f"{_PROBES}test_one_statement*",)),
    Point(
        "long races",
        "those of the contract suite, as long as FULL says",
        tuple(f"{_PROBES}test_races*{each} row versions*" for each in ("with", "without")),
    ),
    Point(
        "owners",
        "a db_owner who is not dbo installs, and writers need no rights",
        (f"{_PROBES}test_a_db_owner*",),
    ),
    Point(
        "guard",
        "it works under many captures, and after a restore without an owner",
        (f"{_PROBES}test_the_guard*",),
    ),
    Point("collations", "of databases and of the server", (f"{_PROBES}test_each_collation*",)),
    Point(
        "transaction ids",
        "current_transaction_id() as a default is one for each statement outside of a transaction",
        (f"{_LOCKING}test_each_statement*",),
    ),
    Point(
        "functions",
        "next value for as an argument; ULIDs given in functions",
        (f"{_MSSQL}test_examples::*", f"{_MSSQL}test_upgrade::*"),
    ),
    Point("ownership chaining", "each role may do what it must, and no more", (f"{_MSSQL}test_rights::*",)),
    Point("errors", "numbers and texts as drivers show them", (f"{_MSSQL}test_bad_*::*",)),
    Point("dead connections", "what a lost line leaves", (f"{_MSSQL}test_lost_connection::*",)),
    Point(
        "order of releasing",
        "a commit does not give locks back newest first while two scans run (feeds of v2 alone)",
        (f"{_MSSQL}test_upgrade::test_programs_of_v2_go_on*",),
    ),
)


def table(outcomes: Sequence[Outcome], *, has_locks: bool) -> str:
    """
    Return the table that a run ends with: a line for each point, and below it what the server answered.

    :param has_locks: whether the server obeys lock hints; Babelfish does not, so it shows results alone.
    """
    rows = [(point.name, point.verdict(outcomes, has_locks=has_locks), point.question) for point in POINTS]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = []
    for point, (name, said, question) in zip(POINTS, rows, strict=True):
        lines.append(f"{name:{widths[0]}}  {said:{widths[1]}}  {question}")
        lines += [f"    {answer}" for answer in point.answers(outcomes)]
    return "\n".join(lines)
