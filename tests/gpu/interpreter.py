"""Triton's interpreter, ten times faster: at every call of a function of a kernel it replaces all names of ``triton.language``;
here it does so once for each module and launch.
"""

import warnings

import numpy


def make_fast() -> None:
    """Change the interpreter of this process."""
    from triton.runtime import interpreter

    patched, launch = set(), interpreter.GridExecutor.__call__

    def launched(self, *args, **kwargs):
        patched.clear()
        with numpy.errstate(all="ignore"), warnings.catch_warnings():  # NaN and infinities are meant
            warnings.simplefilter("ignore", RuntimeWarning)
            return launch(self, *args, **kwargs)

    def called(self, *args, **kwargs):
        if id(self.fn.__globals__) not in patched:
            patched.add(id(self.fn.__globals__))
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    interpreter.GridExecutor.__call__, interpreter.InterpretedFunction.__call__ = launched, called
