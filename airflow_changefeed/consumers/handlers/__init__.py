# SPDX-License-Identifier: Apache-2.0
"""Handlers: what is run for each event, how often, and what becomes of failures."""
