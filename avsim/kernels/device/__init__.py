"""Estimators in the memory of a device; importing any of these needs torch and Triton."""
