# SPDX-License-Identifier: Apache-2.0
"""What our tasks share: arguments, context, waiting, and submitting a Spark job."""
