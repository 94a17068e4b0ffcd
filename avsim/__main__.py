"""`python -m avsim`."""

from avsim.cli.main import main

main()
