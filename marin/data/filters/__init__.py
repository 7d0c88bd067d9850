"""Keeps some documents of a set: by rule, by score, or because they do not overlap with evaluation sets."""
