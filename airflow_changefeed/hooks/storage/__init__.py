# SPDX-License-Identifier: Apache-2.0
"""What Airflow's connections of object stores mean, as fsspec's storage options."""
