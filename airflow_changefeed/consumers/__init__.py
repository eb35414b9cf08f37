# SPDX-License-Identifier: Apache-2.0
"""Code that must see every event once, soon, and in order: consumers of a feed."""
