"""User space: configs, the hackable transformer, and the speedruns. Importing it does nothing, but for saying
where a Python without Marin's packages is at work."""

from marin import environment

environment.require()
