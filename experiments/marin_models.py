"""Names of the project's own tokenizers."""

marin_tokenizer = "marin-community/marin-tokenizer"
