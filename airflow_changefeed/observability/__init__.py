# SPDX-License-Identifier: Apache-2.0
"""What tasks report to others: lineage and metrics."""
