"""The board: rows of every source without copies, taken together by submission, ranked, and kept for the next build."""
