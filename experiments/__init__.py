"""User space: configs, the hackable transformer, and the speedruns. Importing it does nothing."""
