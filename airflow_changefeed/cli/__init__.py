# SPDX-License-Identifier: Apache-2.0
"""Commands of Airflow's command line."""
