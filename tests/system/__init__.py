# SPDX-License-Identifier: Apache-2.0
"""System tests: a real Airflow on loopback, with real DAGs, Spark jobs and processes."""
