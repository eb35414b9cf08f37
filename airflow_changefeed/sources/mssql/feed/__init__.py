# SPDX-License-Identifier: Apache-2.0
"""Feeds in SQL Server: reading, ordering, sealing, purging."""
