"""Removes repeated text: whole documents and paragraphs that are the same, and documents that are nearly the same."""
