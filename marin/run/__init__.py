"""Running experiments on more than one process."""
