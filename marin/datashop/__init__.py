"""From a pool of documents and a wish to a filtered dataset: label a sample, learn the labels, score the pool, keep the best."""
