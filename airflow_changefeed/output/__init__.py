# SPDX-License-Identifier: Apache-2.0
"""An export on a file system: its layout, manifests, commits, and how it is read."""
