# SPDX-License-Identifier: Apache-2.0
"""Operators of other providers, in an environment that has them."""
