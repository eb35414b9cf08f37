# SPDX-License-Identifier: Apache-2.0
"""What a registry of packages answers today."""
