"""`python -m kafkad` is the command `kafkad`."""

from kafkad.cli.main import main

if __name__ == "__main__":
    main()
