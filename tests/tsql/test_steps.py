# SPDX-License-Identifier: Apache-2.0
"""What a batch says about locks is read in full, however it is written."""

from __future__ import annotations

import pytest

from tests.tools.tsql.assemblies import fetch
from tests.tools.tsql.checker import Checker, CompilerError


@pytest.mark.parametrize(
    ("sql", "steps"),
    [
        ("select 1 from s.[t:a.b] as t with (updlock, HoldLock)", ["select t with (holdlock, updlock)"]),
        (
            "select 1 from s.t (nolock) where exists (select 1 from s.u)",
            ["select t with (nolock)", "select u"],
        ),
        ("with c as (select 1 as a from s.t with (xlock)) select a from c", ["select t with (xlock)"]),
        ("select 1 from s.t with (forceseek (i (k)), index (1))", ["select t with (forceseek, index)"]),
        ("insert s.t (a) select 1 from s.u with (paglock)", ["insert t", "select u with (paglock)"]),
        ("update s.t with (tablockx) set a = 1", ["update t with (tablockx)"]),
        (
            "update o set a = 1 from @p as p inner loop join s.t as o with (readpast) on o.a = p.a",
            ["update t with (readpast) by loop join"],
        ),
        ("delete o from #p as p join s.t as o with (rowlock) on o.a = p.a", ["delete t with (rowlock)"]),
        ("select 1 from sys.tables union all select 1 from #t union all select 1 from @t", []),
        (
            "set xact_abort, NOCOUNT on; set lock_timeout 5",
            ["set xact_abort, nocount on", "set lock_timeout 5"],
        ),
        ("set transaction isolation level snapshot;", ["set transaction isolation level snapshot"]),
        (
            "begin tran; save tran a; rollback tran a; commit",
            ["begin tran", "save tran a", "rollback tran a", "commit"],
        ),
        ("exec s.[p:a.b] @a = 1; exec sp_executesql @sql", ["exec p"]),
        ("insert s.t (a) select f.a from s.[f:a.b]() as f", ["insert t", "exec f"]),
        ("declare @a int = next value for s.n", ["next value for n"]),
        (
            "declare @r nvarchar(9) = concat(N'a/', 1); "
            "exec sp_getapplock @Resource = @r, @LockMode = N'Shared', @LockOwner = N'Session'; "
            "exec sp_releaseapplock @Resource = N'b', @LockOwner = N'Session'",
            [
                "lock concat(N'a/', 1): shared, of the session, for -",
                "unlock b: -, of the session, for -",
            ],
        ),
        ("exec (N'select 1 from s.t with (updlock)')", ["text with (updlock)"]),
        ("select concat(@t, N' with (tablock,  holdlock)')", ["text with (tablock, holdlock)"]),
        (
            "create table s.t (a int, primary key (a) with (allow_page_locks = off, fillfactor = 9))",
            ["allow_page_locks = off"],
        ),
        ("alter table s.t set (lock_escalation = auto)", ["alter t (lock_escalation = auto)"]),
    ],
)
def test_a_batch_tells_what_it_locks(checker: Checker, sql: str, steps: list[str]) -> None:
    """In the order of the text; what is nobody else's, and the catalog, is left out."""
    assert list(checker.lock_steps(sql)) == steps


def test_what_does_not_parse_has_no_steps() -> None:
    """It is never taken for a batch that locks nothing."""
    with Checker(fetch()) as checker, pytest.raises(CompilerError, match="line 1: Incorrect syntax"):
        checker.lock_steps("select 1 frm s.t where")
