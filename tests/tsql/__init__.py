# SPDX-License-Identifier: Apache-2.0
"""Tests of the T-SQL check itself; they need Mono and run in ``make tsql`` only."""
