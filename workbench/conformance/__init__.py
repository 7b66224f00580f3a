"""The conformance suite: what breaks elsewhere, checked on every path that can run here."""
