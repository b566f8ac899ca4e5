"""`python -m fairlease`: the same as the `fairlease` command, for places where scripts are not on the path."""

from fairlease.cli.main import main

if __name__ == "__main__":
    main()
