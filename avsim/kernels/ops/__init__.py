"""Triton kernels and what launches them; importing any of these needs torch and Triton."""
