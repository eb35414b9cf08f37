# SPDX-License-Identifier: Apache-2.0
"""What is wrong with changefeed in a database of SQL Server."""
