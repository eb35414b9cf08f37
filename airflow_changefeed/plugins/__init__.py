# SPDX-License-Identifier: Apache-2.0
"""Plugins: the page in Airflow's UI."""
