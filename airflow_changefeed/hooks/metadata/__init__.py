# SPDX-License-Identifier: Apache-2.0
"""What Airflow knows of its DAGs, in tasks and outside."""
