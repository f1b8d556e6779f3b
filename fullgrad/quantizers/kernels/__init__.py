"""Algorithms that are opaque to transforms."""
