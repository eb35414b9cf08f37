# SPDX-License-Identifier: Apache-2.0
"""Exports to object stores: real servers on loopback, not doubles."""
