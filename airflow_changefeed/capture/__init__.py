# SPDX-License-Identifier: Apache-2.0
"""What people use beside a source to capture changes: specs, sessions and event shapes; never imports airflow."""
