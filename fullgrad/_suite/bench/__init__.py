"""The benchmark suite of ``python -m fullgrad bench``: every ratio of times is measured side by side in one run.

`_measure` takes times and bytes, `_comparison` compares one of our statements with those of its rivals, `_operators` makes
them of the cases, `_targets` are those with a number to keep, `_fast` those of the
faster versions, `_growth` fits exponents, `_report` prints and writes.
"""
