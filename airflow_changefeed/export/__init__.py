# SPDX-License-Identifier: Apache-2.0
"""An export's run, without Airflow and Spark: plan, write ranges, commit, result."""
