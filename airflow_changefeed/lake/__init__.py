# SPDX-License-Identifier: Apache-2.0
"""Captured tables from their exports: states, snapshots, current tables, comparisons."""
