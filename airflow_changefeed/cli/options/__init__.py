# SPDX-License-Identifier: Apache-2.0
"""Names and options of the commands, and the values that options take."""
