"""`python -m marin` is the `marin` command."""

from marin.cli.main import main

if __name__ == "__main__":
    main()
