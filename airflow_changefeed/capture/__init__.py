# SPDX-License-Identifier: Apache-2.0
"""Beside the sources, for those who capture changes: sessions and event shapes; never imports airflow."""
