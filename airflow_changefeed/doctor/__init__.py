# SPDX-License-Identifier: Apache-2.0
"""What is wrong with feeds, consumers, Variables and outputs, and how to mend it."""
