"""`python -m omnistage`: the command line, also where its program is not on the path."""

from omnistage.cli.main import main

if __name__ == "__main__":
    main()
