# SPDX-License-Identifier: Apache-2.0
"""Files on local disks and object stores."""
