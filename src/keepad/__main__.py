"""python -m keepad."""

from keepad.cli import main

main()
