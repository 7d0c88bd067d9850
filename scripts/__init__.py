"""The commands of Time-to-GPT-2, each run as `python -m scripts.NAME` from the repository's root."""

from marin import environment

environment.require()
