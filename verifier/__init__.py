"""Trees in, accepted tokens out: masks, positions, the lossless walk and the cache."""
