# SPDX-License-Identifier: Apache-2.0
"""Lineage and metrics with real clients, and the alerts."""
