# SPDX-License-Identifier: Apache-2.0
"""Recomputing what an output says of itself."""
