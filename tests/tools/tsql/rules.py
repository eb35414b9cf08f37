# SPDX-License-Identifier: Apache-2.0
"""
Rules that one batch must keep, on its parsed tree. Only for the process in which .NET is loaded.

Each rule is a generator of lines and messages; its name, without ``_rule``, is what a finding says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.tools.tsql.findings import Finding, Text
from tests.tools.tsql.functions import BUILT_IN
from tests.tools.tsql.tree import executed_literal, kind, parse, parts, tokens, walk

Wrong = Iterator[tuple[int, str]]
PROCEDURES = {f"{verb}ProcedureStatement" for verb in ("Create", "Alter", "CreateOrAlter")}
FUNCTIONS = {f"{verb}FunctionStatement" for verb in ("Create", "Alter", "CreateOrAlter")}
_TOKEN = re.compile(r"<<\w+>>")
_DIRTY = {"NoLock", "ReadUncommitted"}
_MOST_COLUMNS = 4096
# They count, open transactions too, as the server's own number of rows does; they give no event.
_COMPARES = ("capture_unordered:", "capture_rows.")
# Tables that all feeds share.
_SHARED = {
    *("consumers", "consumer_settings", "cursor_history", "dead_letters", "invocations", "lease_waiters"),
    *("snapshots", "snapshot_marks"),
}
# What may stand before the settings: it reads nothing.
_HARMLESS = {"DeclareVariableStatement", "PredicateSetStatement", "SetTransactionIsolationLevelStatement"}


def static_findings(text: Text, tree: Any) -> list[Finding]:
    """Apply every rule to one parsed text."""
    nodes = list(walk(tree))
    found = [
        Finding(text.name, line, rule.__name__.removesuffix("_rule"), message)
        for rule in RULES
        for line, message in rule(nodes)
    ]
    return found + [Finding(text.name, line, "token", message) for line, message in _tokens(text, tree)]


def settings_rule(nodes: list[Any]) -> Wrong:
    """Every procedure begins with its settings; the isolation level before its first read (ADR 0001, R5)."""
    for node in nodes:
        if kind(node) in PROCEDURES and node.StatementList is not None:
            found = _settings(node.StatementList)
            for wanted in (
                "set nocount on",
                "set xact_abort on",
                "set transaction isolation level read committed",
            ):
                if wanted not in found:
                    yield node.StartLine, f"the procedure does not begin with `{wanted}`"


def _settings(statement_list: Any) -> set[str]:
    statements = list(statement_list.Statements)
    while statements and kind(statements[0]) == "BeginEndBlockStatement":
        statements = list(statements[0].StatementList.Statements)
    found = set()
    for statement in statements:
        if _asks_caller(statement):
            continue
        if kind(statement) not in _HARMLESS or any(
            kind(node) == "ScalarSubquery" for node in walk(statement)
        ):
            break
        if kind(statement) == "PredicateSetStatement" and statement.IsOn:
            names = {"NoCount": "nocount", "XactAbort": "xact_abort"}
            found |= {f"set {names.get(name, name)} on" for name in str(statement.Options).split(", ")}
        if (
            kind(statement) == "SetTransactionIsolationLevelStatement"
            and str(statement.Level) == "ReadCommitted"
        ):
            found.add("set transaction isolation level read committed")
    return found


def _asks_caller(statement: Any) -> bool:
    """Say whether it refuses a caller for the session's own settings, which those to come would hide."""
    tables = [parts(node.SchemaObject) for node in walk(statement) if kind(node) == "NamedTableReference"]
    return (
        kind(statement) == "IfStatement"
        and kind(statement.ThenStatement) == "ThrowStatement"
        and statement.ElseStatement is None
        and tables == [("sys", "dm_exec_sessions")]
    )


def insert_exec_rule(nodes: list[Any]) -> Wrong:
    """`insert ... exec` cannot be nested and hides the called procedure's transaction from it."""
    for node in nodes:
        if kind(node) == "ExecuteInsertSource":
            yield node.StartLine, "`insert ... exec`"


def dirty_read_rule(nodes: list[Any]) -> Wrong:
    """Rows that may roll back are never read, but to compare a number, or to take rows from our own away."""
    harmless = {hint.FirstTokenIndex for node in nodes for hint in _harmless(node)}
    for node in nodes:
        is_hint = kind(node) in ("TableHint", "IndexTableHint") and str(node.HintKind) in _DIRTY
        if is_hint and node.FirstTokenIndex not in harmless:
            yield node.StartLine, f"table hint `{str(node.HintKind).lower()}`"
        if kind(node) == "SetTransactionIsolationLevelStatement" and str(node.Level) in _DIRTY:
            yield node.StartLine, "isolation level read uncommitted"


def _harmless(node: Any) -> Iterator[Any]:
    """Go over the hints in what can give no row that rolls back: at worst a row is missing."""
    is_comparison = kind(node) in PROCEDURES and parts(node.ProcedureReference.Name)[-1].startswith(_COMPARES)
    is_from_our_own = kind(node) == "DeleteSpecification" and (
        kind(node.Target) == "VariableTableReference"
        or (
            kind(node.Target) == "NamedTableReference" and parts(node.Target.SchemaObject)[-1].startswith("#")
        )
    )
    if is_comparison or is_from_our_own:
        yield from (found for found in walk(node) if kind(found) in ("TableHint", "IndexTableHint"))


def database_number_rule(nodes: list[Any]) -> Wrong:
    """The number of a database in ``sys.databases`` may be another than ``db_id()`` on Azure SQL Database."""
    for node in nodes:
        if kind(node) != "QuerySpecification":
            continue
        within = list(walk(node))
        names = {
            tuple(part.lower() for part in parts(found.SchemaObject))
            for found in within
            if kind(found) == "NamedTableReference"
        }
        for found in within:
            is_number = kind(found) == "FunctionCall" and found.FunctionName.Value.lower() == "db_id"
            if is_number and ("sys", "databases") in names:
                yield found.StartLine, "`sys.databases` is searched with `db_id()`: use its name, `db_name()`"


def taken_by_key_rule(nodes: list[Any]) -> Wrong:
    """
    A join that passes locked rows by looks each up by its key.

    Any other plan would scan, and lock, all that waits, for each page of a drain anew.
    """
    for node in nodes:
        if kind(node) != "QualifiedJoin" or kind(node.SecondTableReference) != "NamedTableReference":
            continue
        table = node.SecondTableReference
        hints = {str(hint.HintKind) for hint in table.TableHints}
        is_locking = "UpdLock" in hints or parts(table.SchemaObject)[-1].startswith("outbox:")
        if not is_locking or "ReadPast" not in hints:
            continue
        if str(node.JoinHint) != "Loop" or "ForceSeek" not in hints:
            yield (
                node.SecondTableReference.StartLine,
                "a join with `readpast` is no `loop join` with `forceseek`",
            )


def shared_table_rule(nodes: list[Any]) -> Wrong:
    """
    What searches a table that all feeds share names the feed, or an index to seek in.

    Any other plan would scan, and lock, rows of other feeds.
    """
    for node in nodes:
        if kind(node) not in ("QuerySpecification", "UpdateSpecification", "DeleteSpecification"):
            continue
        sources = [
            getattr(node, "Target", None),
            *(node.FromClause.TableReferences if node.FromClause else ()),
        ]
        within = [found for source in sources if source is not None for found in walk(source)]
        tables = [one for one in within if kind(one) == "NamedTableReference"]
        is_by_key = any(
            kind(found) == "BooleanComparisonExpression"
            and str(found.ComparisonType) == "Equals"
            and any(_column(side) == "feed_id" for side in (found.FirstExpression, found.SecondExpression))
            for found in walk(node)
        )
        for table in tables:
            name = parts(table.SchemaObject)
            is_seek = any(kind(hint) == "ForceSeekTableHint" and hint.IndexValue for hint in table.TableHints)
            if len(name) > 1 and name[-1] in _SHARED and not is_by_key and not is_seek:
                yield table.StartLine, f"`{name[-1]}` is searched without `feed_id`"


def _column(expression: Any) -> str:
    """Return the name of the column that an expression is; empty for others."""
    if kind(expression) != "ColumnReferenceExpression" or expression.MultiPartIdentifier is None:
        return ""
    return str(list(expression.MultiPartIdentifier.Identifiers)[-1].Value).lower()


def lock_by_update_rule(nodes: list[Any]) -> Wrong:
    """
    An update that sets columns to themselves serves as a lock, and has the hints that keep it.

    The server may leave such a write out, and with optimized locking keeps no lock for it.
    """
    for node in nodes:
        if kind(node) != "UpdateSpecification" or not all(_is_same(node, each) for each in node.SetClauses):
            continue
        hints = {str(found.HintKind) for found in walk(node) if kind(found) == "TableHint"}
        if not hints >= {"UpdLock", "Rowlock"}:
            yield node.StartLine, "an update that changes nothing is without `updlock` and `rowlock`"


def _is_same(update: Any, clause: Any) -> bool:
    """Return whether a part of an update sets a column to itself, and not to that of another table."""
    column, value = getattr(clause, "Column", None), getattr(clause, "NewValue", None)
    if column is None or not _column(column) or _column(column) != _column(value):
        return False
    table = [str(one.Value).lower() for one in value.MultiPartIdentifier.Identifiers][-2:-1]
    return not table or (
        kind(update.Target) == "NamedTableReference"
        and table[0] == parts(update.Target.SchemaObject)[-1].lower()
    )


def throw_rule(nodes: list[Any]) -> Wrong:
    """
    A throw has a literal number, which its message repeats for clients that are not told the number.

    A message in a variable is composed from a literal of the same batch that begins so.
    """
    literals = [node.Value for node in nodes if kind(node) == "StringLiteral"]
    for node in nodes:
        if kind(node) != "ThrowStatement" or node.ErrorNumber is None:
            continue
        if kind(node.ErrorNumber) != "IntegerLiteral":
            yield node.StartLine, "the number of a throw is not a literal"
            continue
        begin = f"changefeed {node.ErrorNumber.Value}: "
        if kind(node.Message) == "StringLiteral":
            if not node.Message.Value.startswith(begin):
                yield (
                    node.StartLine,
                    f"the message of throw {node.ErrorNumber.Value} does not begin with '{begin}'",
                )
        elif not any(literal.startswith(begin) for literal in literals):
            yield (
                node.StartLine,
                f"throw {node.ErrorNumber.Value}: no literal in the batch begins with '{begin}'",
            )


def catch_rule(nodes: list[Any]) -> Wrong:
    """A catch does something: `xact_abort` ends the batch, and an error is thrown on without one."""
    for node in nodes:
        if kind(node) == "TryCatchStatement":
            caught = list(node.CatchStatements.Statements)
            if len(caught) == 1 and kind(caught[0]) == "ThrowStatement" and caught[0].ErrorNumber is None:
                yield caught[0].StartLine, "a catch that only throws: leave out `try` and `catch`"


def schemabinding_rule(nodes: list[Any]) -> Wrong:
    """
    A scalar function that names no object is bound to the schema.

    Otherwise the server takes it for one that reads data, and guards each update that calls it by a spool.
    """
    for node in nodes:
        if kind(node) not in FUNCTIONS or kind(node.ReturnType) != "ScalarFunctionReturnType":
            continue
        within = list(walk(node))
        names = any(
            kind(found) in ("NamedTableReference", "NextValueForExpression")
            or (kind(found) == "FunctionCall" and found.CallTarget is not None)
            for found in within
        )
        is_bound = any(str(option.OptionKind) == "SchemaBinding" for option in node.Options)
        if not names and not is_bound:
            yield node.StartLine, "a scalar function that names no object is not `with schemabinding`"


def executed_literal_rule(nodes: list[Any]) -> Wrong:
    """What is executed as a literal can be parsed."""
    for node in nodes:
        literal = executed_literal(node)
        if literal is not None:
            for line, message in parse(literal.Value)[1]:
                yield literal.StartLine + line - 1, message


def function_rule(nodes: list[Any]) -> Wrong:
    """A function without a schema is a built-in one, and one that the oldest server has."""
    for node in nodes:
        if kind(node) != "FunctionCall" or node.CallTarget is not None:
            continue
        if node.FunctionName.Value.lower() not in BUILT_IN:
            yield node.StartLine, f"`{node.FunctionName.Value}` is not on the list of built-in functions"


def insert_columns_rule(nodes: list[Any]) -> Wrong:
    """An insert names as many columns as it gives values."""
    for node in nodes:
        if kind(node) != "InsertSpecification":
            continue
        columns = node.Columns.Count
        if not columns:
            yield node.StartLine, "an insert without a list of columns"
            continue
        for given in _values(node.InsertSource):
            if given != columns:
                yield node.StartLine, f"an insert names {columns} columns and gives {given} values"


def _values(insert_source: Any) -> Iterator[int]:
    """Count the values of each row; nothing for what the tree does not tell, such as a star."""
    if kind(insert_source) == "ValuesInsertSource":
        for row in insert_source.RowValues:
            yield row.ColumnValues.Count
    elif kind(insert_source) == "SelectInsertSource" and kind(insert_source.Select) == "QuerySpecification":
        elements = list(insert_source.Select.SelectElements)
        if all(kind(element) == "SelectScalarExpression" for element in elements):
            yield len(elements)


def select_list_rule(nodes: list[Any]) -> Wrong:
    """A select gives at most 4,096 columns, a limit of the server's that no compiler here knows."""
    for node in nodes:
        if kind(node) == "QuerySpecification" and node.SelectElements.Count > _MOST_COLUMNS:
            yield node.StartLine, f"a select of {node.SelectElements.Count} columns"


def _tokens(text: Text, tree: Any) -> Wrong:
    """Every token of a template has been filled, in names, literals and comments."""
    for _, token in tokens(tree):
        if text.holds_templates and "StringLiteral" in str(token.TokenType):
            continue
        for found in _TOKEN.findall(token.Text or ""):
            yield token.Line, f"{found} is not filled"


RULES: tuple[Callable[[list[Any]], Wrong], ...] = (
    settings_rule,
    insert_exec_rule,
    dirty_read_rule,
    database_number_rule,
    taken_by_key_rule,
    shared_table_rule,
    lock_by_update_rule,
    throw_rule,
    schemabinding_rule,
    catch_rule,
    executed_literal_rule,
    function_rule,
    insert_columns_rule,
    select_list_rule,
)
