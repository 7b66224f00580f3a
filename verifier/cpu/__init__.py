"""The fast path for models that run on a CPU."""
