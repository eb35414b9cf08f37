# SPDX-License-Identifier: Apache-2.0
"""
The way from seal to cursor, without Airflow and Spark: plan, write ranges, commit units, read and verify
them.
"""
