# SPDX-License-Identifier: Apache-2.0
"""Sessions and event shapes for captures; independent of the sources, never imports airflow."""
