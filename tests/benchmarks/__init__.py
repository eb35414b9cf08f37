# SPDX-License-Identifier: Apache-2.0
"""Figures, as ratios against a floor or a peer in one run, never asserted by a test: ``make bench``."""
