# SPDX-License-Identifier: Apache-2.0
"""Folds the events of captures: reads them and the rows of a base, and gives the table at a time."""
