"""The forgery corpus: families of dishonest submissions, each made from an honest one by what a forger would do."""

from forgeries import of_copies, of_core, of_evaluations, of_figures, of_files, of_logs, of_pauses  # noqa: F401  (their families register themselves)
from forgeries.register import FAMILIES, Bases, Expected

__all__ = ["FAMILIES", "Bases", "Expected"]
