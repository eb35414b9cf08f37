# SPDX-License-Identifier: Apache-2.0
"""What the page shows of feeds, consumers, windows and tables, as JSON values."""
