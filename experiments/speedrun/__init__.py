"""Speedruns: one directory each, with the file that ran and the results it gave."""
