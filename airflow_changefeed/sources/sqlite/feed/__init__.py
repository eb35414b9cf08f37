# SPDX-License-Identifier: Apache-2.0
"""Feeds in SQLite: reading, writing, ordering, sealing, purging."""
