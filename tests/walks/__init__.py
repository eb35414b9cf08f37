# SPDX-License-Identifier: Apache-2.0
"""All that a long tutorial says."""
