# SPDX-License-Identifier: Apache-2.0
"""The source for SQL Server through Microsoft's driver, against an end that answers as a test says."""
