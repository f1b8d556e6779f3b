"""Triton's interpreter, ten times faster: at every call of a function of a kernel it replaces all names of ``triton.language``;
here it does so once for each module and launch. A scan combines element by element in Python; here, whole rows by doubling.
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

    def scanned(self, input):
        found, types, distance = [x.handle.data for x in input], [x.dtype for x in input], 1
        places = numpy.arange(found[0].shape[self.axis]).reshape([-1 if i == self.axis else 1 for i in range(found[0].ndim)])
        while distance < places.size:
            both = [numpy.roll(x, distance, self.axis) for x in found], found
            combined = self.combine_fn.fn(*[self.to_tensor(x, t) for part in both for x, t in zip(part, types, strict=True)])
            combined = combined if isinstance(combined, tuple) else (combined,)
            found = [numpy.where(places < distance, x, y.handle.data) for x, y in zip(found, combined, strict=True)]
            distance *= 2
        return [self.to_tensor(x, t) for x, t in zip(found, types, strict=True)]

    interpreter.ScanOps.generic_scan = scanned
    interpreter.GridExecutor.__call__, interpreter.InterpretedFunction.__call__ = launched, called
