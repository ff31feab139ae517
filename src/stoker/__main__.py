"""`python -m stoker` is `stoker`."""

from stoker.cli.app import main

main()
