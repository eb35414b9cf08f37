# SPDX-License-Identifier: Apache-2.0
"""Takes snapshots of captured tables while others write to them (docs/adr/0010-bases.md)."""
