"""The leaderboard's site: static pages, charts, data and downloads from a board, and the server that shows them."""
