"""Jets of `jax.experimental.jet`, of the orders 1 to 6, and Laplacians of folx, with the versions of both: ``python golden.py``.

The functions stand as text, in words that torch and JAX share.
"""

import json
from importlib.metadata import version
from pathlib import Path

TARGET = Path(__file__).with_suffix(".json")
ORDER = 6
FUNCTIONS = [
    *(
        "sin(x)",
        "cos(x)",
        "sin(x) / cos(x)",
        "tanh(x)",
        "sinh(x)",
        "cosh(x)",
        "exp(x)",
        "expm1(x)",
        "log(x)",
        "log1p(x)",
        "sqrt(x)",
    ),
    *("1 / x", "x * x", "x**3", "x**2.5", "1 / (1 + x * x)", "x * sin(x) - 3", "2 - x / 4", "exp(-x * x)", "sin(x) / x"),
    *("sin(cos(x))", "log(1 + exp(x))", "sin(x) @ x", "w @ x", "tanh(w @ tanh(w @ x))", "sin(w @ x) @ (w @ x)", "x.sum() * x"),
    *("cumsum(x, 0) * x", "exp(x) / exp(x).sum()", "log(exp(x).sum())", "(x[1:] * x[:-1]).sum()", "outer(x, sin(x)).sum(0)"),
]
LAPLACIANS = {
    "a perceptron": "tanh(w @ tanh(w @ tanh(w @ x)) + 1).sum()",
    "an attention block": "(lambda t: sin(t + (lambda s: s / s.sum(1).reshape(2, 1))(exp(t @ w[:2, :2] @ t.T)) @ t @ w[2:, 2:]))"
    "(x.reshape(2, 2)).sum()",
    "a wavefunction": "(lambda r, d: linalg.slogdet(exp(-sqrt(((r.reshape(2, 1, 2) - w[:2, 1:3]) ** 2).sum(2))))[1]"
    " + d / (1 + d))(x.reshape(2, 2), sqrt(((x[:2] - x[2:]) ** 2).sum()))",
}
X = [0.15, 0.35, 0.6, 0.85]
SERIES = [[round(((7 * i + 3 * k) % 11 - 5) / 6, 4) for i in range(4)] for k in range(ORDER)]
W = [[round(((5 * i + 3 * j) % 7 - 3) / 4, 4) for i in range(4)] for j in range(4)]


def main() -> None:
    import folx
    import jax
    import jax.numpy as jnp
    from jax.experimental.jet import jet

    jax.config.update("jax_enable_x64", True)
    names = {name: getattr(jnp, name) for name in dir(jnp) if not name.startswith("_")}
    found = {}
    for text in FUNCTIONS:
        f = eval(f"lambda x: {text}", {**names, "w": jnp.asarray(W)})
        value, series = jet(f, (jnp.asarray(X),), ([jnp.asarray(v) for v in SERIES],))
        found[text] = [jnp.asarray(v).tolist() for v in (value, *series)]
    laplacians = {}
    for name, text in LAPLACIANS.items():
        y = folx.forward_laplacian(eval(f"lambda x: {text}", {**names, "w": jnp.asarray(W)}))(jnp.asarray(X))
        laplacians[name] = [v.tolist() for v in (y.x, y.jacobian.dense_array, y.laplacian)]
    versions = {"jax": jax.__version__, "folx": version("folx")}
    TARGET.write_text(json.dumps({**versions, "x": X, "series": SERIES, "w": W, "jets": found, "laplacians": laplacians}) + "\n")


if __name__ == "__main__":
    main()
