"""avsim: trace-driven simulation of adaptive verification in speculative decoding."""

__version__ = "0.1.0"
