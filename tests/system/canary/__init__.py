# SPDX-License-Identifier: Apache-2.0
"""Canaries: passwords that must be found nowhere, and where they are looked for."""
