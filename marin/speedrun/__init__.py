"""The contest: configs, FLOP accounting, results, consistency checks and the leaderboard.

Nothing is imported here, so that reading results and building pages never load JAX.
"""
