"""The dense tracer: a draft block at every output position of a Hugging Face target, without a serving engine."""
