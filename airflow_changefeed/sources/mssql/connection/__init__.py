# SPDX-License-Identifier: Apache-2.0
"""Connections to SQL Server: driver, options, sessions, retries and errors."""
