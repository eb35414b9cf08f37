# SPDX-License-Identifier: Apache-2.0
"""Links to the page in Airflow's UI."""
