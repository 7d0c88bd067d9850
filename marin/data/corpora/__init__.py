"""Corpora that a program can make by itself, each named by the digest of its text."""
