# SPDX-License-Identifier: Apache-2.0
"""Faults of changefeed in a SQL Server database."""
