# SPDX-License-Identifier: Apache-2.0
"""Readers of others, each in an environment of its own."""
