# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser, with a real Airflow."""
