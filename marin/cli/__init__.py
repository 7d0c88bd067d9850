"""The `marin` command: one file per subcommand, each imported only when it is asked for."""
