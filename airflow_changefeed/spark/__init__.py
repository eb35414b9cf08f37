# SPDX-License-Identifier: Apache-2.0
"""Spark's side: the job that runs a plan, and reading an export back. Never imports Airflow."""
