# SPDX-License-Identifier: Apache-2.0
"""What released versions have left behind, and what the present one does with it."""
