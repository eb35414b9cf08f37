# SPDX-License-Identifier: Apache-2.0
"""From Airflow's connections to sources, outputs, tables and Spark."""
