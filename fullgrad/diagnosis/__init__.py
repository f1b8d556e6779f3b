"""A model diagnosed: where its gradient ends, and which derivatives of which layer raise or are wrong.

`_flow` runs the model forward and backward, `_transforms` its layers under every transform, `_mend` writes the lines that mend
what they find, `_diagnose` puts these together with the audit of the source, and `_page` shows all of it.
"""
