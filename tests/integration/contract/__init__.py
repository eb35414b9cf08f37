# SPDX-License-Identifier: Apache-2.0
"""
The contract suite: every promise of docs/explanation/promises.md and of ``sources/base.py``, for any source.

The tests know a source by its protocols and capabilities only; what they need besides (an empty database,
writers' own transactions) an engine gives them (``engines.py``). A new source adds an engine, and no test.
"""
