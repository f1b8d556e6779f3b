"""Faster versions of formulas: ``fullgrad._core.fast`` says when they run, ``python -m fullgrad bench fast`` what they gain.

Each computes the numbers of its formula, or returns NotImplemented. No family imports a module of this folder.
"""
