"""What a run shows: the summary document, console tables, files, plots and the one-file HTML report."""
