"""The operators of the order statistics."""
