# SPDX-License-Identifier: Apache-2.0
"""Consumers in SQLite: cursors, leases, dead letters, work in a transaction."""
