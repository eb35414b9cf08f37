# SPDX-License-Identifier: Apache-2.0
"""
The parsed tree of a batch. Only for the process in which .NET is loaded.

Nodes are Microsoft's own (``Microsoft.SqlServer.TransactSql.ScriptDom``); a visitor class in Python would be
called through .NET for each node, which takes ten times as long as walking over the properties.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

SCRIPT_DOM = "Microsoft.SqlServer.TransactSql.ScriptDom"
LIBRARIES = (SCRIPT_DOM, "Microsoft.SqlServer.Dac", "Microsoft.SqlServer.Dac.Extensions")
PARSERS = (
    "TSql140Parser",
    "TSql150Parser",
)  # SQL Server 2017, the oldest we promise, and the newest in the wheel
# Parts of a name that its list of identifiers has too.
_AGAIN = {f"{part}Identifier" for part in ("Base", "Child", "Database", "Schema", "Server")}
# Properties of each type of node that hold nodes; true where they hold a list of them.
_CHILDREN: dict[str, list[tuple[str, bool]]] = {}


def load(folder: Path) -> None:
    """Load .NET and the compiler from a folder of assemblies; once per process."""
    import pythonnet

    with warnings.catch_warnings():
        # Debian's Mono is older than clr-loader likes; a crash ends this process only, and is reported.
        warnings.simplefilter("ignore")
        pythonnet.load("mono")
    import clr

    sys.path.append(str(folder))
    for library in LIBRARIES:
        clr.AddReference(library)


def script_dom() -> Any:
    """Return the namespace of the parser and its nodes."""
    import Microsoft.SqlServer.TransactSql.ScriptDom as namespace

    return namespace


@lru_cache(maxsize=1000)  # each job holds the same installation
def parse(sql: str) -> tuple[Any, list[tuple[int, str]]]:
    """
    Parse a batch with quoted identifiers on, as each of our batches sets it.

    :return: the tree of the oldest parser, and every parser's errors as line (from 1) and message.
    """
    from System.IO import StringReader

    tree, errors = None, []
    for parser in PARSERS:
        # The parser takes another type of argument than its abstract parent, so it is asked for by name.
        found, wrong = getattr(script_dom(), parser)(True).Parse(StringReader(sql))
        tree = found if tree is None else tree
        errors += [(error.Line, error.Message) for error in wrong]
    return tree, list(dict.fromkeys(errors))


def kind(node: Any) -> str:
    """Return a node's type, for example ``ThrowStatement``."""
    return type(node).__name__  # asking .NET takes a hundred times as long


def walk(node: Any) -> Iterator[Any]:
    """Go over a node and all below it, parents first."""
    yield node
    for name, is_list in _children(node):
        value = getattr(node, name)
        if value is not None:
            for child in value if is_list else (value,):
                yield from walk(child)


def _children(node: Any) -> list[tuple[str, bool]]:
    name = kind(node)
    if name not in _CHILDREN:
        _CHILDREN[name] = list(_find_children(node.GetType()))
    return _CHILDREN[name]


def _find_children(node_type: Any) -> Iterator[tuple[str, bool]]:
    import clr

    fragment = clr.GetClrType(script_dom().TSqlFragment)
    for member in node_type.GetProperties():
        of, arguments = member.PropertyType, member.PropertyType.GetGenericArguments()
        if member.GetIndexParameters().Length or member.Name in _AGAIN:
            continue
        if fragment.IsAssignableFrom(of):
            yield member.Name, False
        elif arguments.Length == 1 and fragment.IsAssignableFrom(arguments[0]):
            yield member.Name, True


def executed_literal(node: Any) -> Any | None:
    """Return the literal that a node executes, by `exec (N'...')` or `sp_executesql N'...'`."""
    if kind(node) == "ExecutableStringList" and node.Strings.Count == 1:
        literal = node.Strings[0]
    elif kind(node) == "ExecutableProcedureReference" and node.Parameters.Count:
        reference = node.ProcedureReference.ProcedureReference
        if reference is None or parts(reference.Name)[-1].lower() != "sp_executesql":
            return None
        literal = node.Parameters[0].ParameterValue
    else:
        return None
    return literal if kind(literal) == "StringLiteral" else None


def tokens(node: Any) -> Iterator[tuple[int, Any]]:
    """Go over a node's tokens and their places in the batch, white space and comments included."""
    for place in range(node.FirstTokenIndex, node.LastTokenIndex + 1):
        yield place, node.ScriptTokenStream[place]


def source(node: Any, replace: Mapping[int, str] | None = None) -> str:
    """
    Return the text of a node. By tokens, for .NET's offsets count UTF-16 units and Python's do not.

    :param replace: other words for the tokens at these places.
    """
    words = replace or {}
    return "".join(words.get(place, token.Text or "") for place, token in tokens(node))


def parts(name: Any) -> tuple[str, ...]:
    """Return a name's parts, unquoted."""
    return tuple(identifier.Value for identifier in name.Identifiers)
