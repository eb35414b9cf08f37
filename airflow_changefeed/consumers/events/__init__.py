# SPDX-License-Identifier: Apache-2.0
"""Events as delivered to consumers."""
