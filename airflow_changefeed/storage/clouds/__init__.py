# SPDX-License-Identifier: Apache-2.0
"""What each cloud's credentials are, and how fsspec and ``deltalake`` are told of them."""
