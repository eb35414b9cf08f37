# SPDX-License-Identifier: Apache-2.0
"""The data source ``changefeed`` of Spark: its options, columns, and what it reads."""
