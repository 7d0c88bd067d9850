"""Documents, corpora, tokenizers, token caches and batches. Nothing here imports JAX."""
