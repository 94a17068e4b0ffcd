"""Experiments: one folder per question, checks with their tolerances, and sweeps that resume.

An experiment's own code is a script that runs as a process of its own: it imports this package, never the reverse.
"""

from __future__ import annotations

from avsim.experiments.checks import Check, Result, main
from avsim.experiments.plot import make_plot, save_plot
from avsim.experiments.spec import Experiment, find, read_experiment

__all__ = ["Check", "Experiment", "Result", "find", "main", "make_plot", "read_experiment", "save_plot"]
