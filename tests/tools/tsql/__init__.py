# SPDX-License-Identifier: Apache-2.0
"""
The package's T-SQL, compiled by Microsoft's own parser and model compiler (ScriptDom and DacFx) on Mono.

``python -m tests.tools.tsql`` checks everything; it never connects to a server. The compiler lives in a
process of its own (``worker``), because .NET is loaded once per process and may take it down.
"""
