# SPDX-License-Identifier: Apache-2.0
"""From Airflow's connections of object stores to fsspec's storage options."""
