"""End-to-end benchmarks: ways of decoding in turn on the same prompts, and servers under load."""
