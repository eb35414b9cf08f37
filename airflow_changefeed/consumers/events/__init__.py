# SPDX-License-Identifier: Apache-2.0
"""Events as consumers get them."""
