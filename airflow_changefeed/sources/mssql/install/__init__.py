# SPDX-License-Identifier: Apache-2.0
"""Installing and upgrading changefeed in a database of SQL Server."""
