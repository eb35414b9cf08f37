# SPDX-License-Identifier: Apache-2.0
"""DAGs whose lineage is read from a file."""
