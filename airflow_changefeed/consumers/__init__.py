# SPDX-License-Identifier: Apache-2.0
"""Consumers: code that processes every event of a feed once, in order and with low latency."""
