# SPDX-License-Identifier: Apache-2.0
"""An export's files as a table of Delta Lake or Apache Iceberg (docs/adr/0011-commits-by-format.md)."""
