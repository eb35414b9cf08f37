# SPDX-License-Identifier: Apache-2.0
"""``make demo``: a year of real flights, loaded by racing writers, exported by a real Airflow and Spark."""
