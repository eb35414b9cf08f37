# SPDX-License-Identifier: Apache-2.0
"""How strong the tests are: each row breaks a promise by a small change, and names tests that must fail."""
