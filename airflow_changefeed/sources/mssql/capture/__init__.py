# SPDX-License-Identifier: Apache-2.0
"""Captures in SQL Server."""
