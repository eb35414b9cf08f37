# SPDX-License-Identifier: Apache-2.0
"""Compares a table with what its export gives, on Spark."""
