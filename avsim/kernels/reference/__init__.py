"""What each kernel computes, in NumPy and in the layout of the kernels."""
