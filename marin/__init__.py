"""Marin: an open lab for language-model training in one repository.

Importing the package does nothing but name its version; every part is imported where it is used, so that `marin --help`
and the parts that need no accelerator start at once.
"""

__version__ = "0.1.0"
