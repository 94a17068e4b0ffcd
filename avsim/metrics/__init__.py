"""Metrics: calibration of confidences, intervals, verdicts and per-arm summaries."""
