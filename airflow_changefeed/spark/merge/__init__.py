# SPDX-License-Identifier: Apache-2.0
"""Writes the files of current tables of Delta Lake and Iceberg."""
