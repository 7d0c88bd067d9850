"""Time-to-GPT-2: what the commands in `scripts/` share, from the places of files to the report."""
