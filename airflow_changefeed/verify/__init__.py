# SPDX-License-Identifier: Apache-2.0
"""Verification of exports: recomputes and compares what their manifests contain."""
