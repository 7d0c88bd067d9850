"""Datashop runs: each file says what is wanted, and of which pool."""
