# SPDX-License-Identifier: Apache-2.0
"""``make ui``: Airflow's UI on loopback: the example DAGs, a loaded feed and a week of hourly windows."""
