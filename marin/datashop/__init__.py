"""The datashop: from a prompt or examples to a filtered, deduplicated, tokenized dataset, with every decision measured."""
