# SPDX-License-Identifier: Apache-2.0
"""Checks of feeds, consumers, Variables and outputs, with a remedy for each fault."""
