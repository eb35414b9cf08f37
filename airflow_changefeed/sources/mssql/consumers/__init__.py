# SPDX-License-Identifier: Apache-2.0
"""Consumers in SQL Server: cursors, leases, dead letters, work in a transaction."""
