"""Mutants: one thing is changed in a file of the package, and the checks of the kit must fail.

``python -m tests.mutants fullgrad/clamping`` writes how many were caught, and prints those that were not. Each runs in a process
of its own, made from one that has imported torch: the cases that run the file, by every check that does not compile, then the
tests of the family, until one fails.
"""
