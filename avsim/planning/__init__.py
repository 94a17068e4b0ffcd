"""From summary numbers alone: acceptance rates or a throughput table in, predictions with their uncertainty out."""
