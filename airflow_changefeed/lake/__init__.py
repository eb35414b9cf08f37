# SPDX-License-Identifier: Apache-2.0
"""A captured table's state at a time, folded from its exported events."""
