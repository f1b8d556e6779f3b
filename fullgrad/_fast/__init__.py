"""Faster versions of formulas: ``fullgrad._core.fast`` says when they run, ``python -m fullgrad bench fast`` what they gain.

Each computes the numbers of its formula, or returns NotImplemented. `exported` has what formulas are in exported graphs. No
family imports a module of this folder.
"""
