"""A small serving engine for one Llama-like model on a CPU, with ragged verification and avsim's own decisions.

Nothing here is part of avsim; it is what avsim's predictions are held against.
"""
