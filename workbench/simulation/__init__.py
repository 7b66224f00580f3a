"""A discrete-event model of an engine with continuous batching, fed with recorded acceptance."""
