# SPDX-License-Identifier: Apache-2.0
"""Tests against real engines."""
