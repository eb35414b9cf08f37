# SPDX-License-Identifier: Apache-2.0
"""Cursors of exports and consumers: database rows, Airflow Variables, moves and recovery."""
