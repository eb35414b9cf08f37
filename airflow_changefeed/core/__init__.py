# SPDX-License-Identifier: Apache-2.0
"""Values and their rules: pure Python, no I/O, importing only the standard library and python-ulid."""
