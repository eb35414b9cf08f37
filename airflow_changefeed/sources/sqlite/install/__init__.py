# SPDX-License-Identifier: Apache-2.0
"""Setting up changefeed in a SQLite file."""
