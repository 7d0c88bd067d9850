"""How sure one can be of a result: means, tests, power, scaling laws, and what is written down before an experiment."""
