"""The command line: thin Typer commands, no logic."""
