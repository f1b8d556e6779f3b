"""Algorithms that are opaque to transforms: scans, windows, isotonic regression, the transport solver, blocks."""
