"""Recording traces from a running engine: a bounded queue, a writer thread, and a log that survives `kill -9`.

Everything that runs inside an engine imports with NumPy alone.
"""
