# SPDX-License-Identifier: Apache-2.0
"""Handlers: what runs for each event, retries and failures."""
