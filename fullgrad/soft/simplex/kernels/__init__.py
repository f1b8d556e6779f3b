"""Thresholds by iteration, on plain numbers; the rules of the operators state their derivatives."""
