"""`python -m imagebuilder` is the command `imagebuilder`."""

from imagebuilder.cli import main

if __name__ == "__main__":
    main()
