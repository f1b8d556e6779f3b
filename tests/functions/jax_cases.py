"""Functions with rules of their own, whose derivatives JAX 0.12 has computed: `jax_golden.json`."""

import functools

import torch

import fullgrad


def thrice(f, x):
    """f(f(f(x)))."""
    for _ in range(3):
        x = f(x)
    return x


def cases():
    """The functions and their arguments, by name."""
    out = {}

    def add(name):
        def put(pair):
            out[name] = pair

        return put

    # -- custom_jvp ---------------------------------------------------------------------------------------------
    @fullgrad.custom_jvp
    def double_sine(x):
        return torch.sin(x)

    double_sine.defjvp(lambda p, t: (double_sine(p[0]), 2 * torch.cos(p[0]) * t[0]))
    add("jvp basic")((lambda x: double_sine(x), [[0.3, -1.2, 2.0]]))

    @fullgrad.custom_jvp
    def constant_slope(x):
        return torch.cos(2 * x) / 2

    constant_slope.defjvp(lambda p, t: (constant_slope(p[0]), 3 * t[0]))
    add("jvp constant slope")((lambda x: constant_slope(x) * x, [[0.3, -1.2, 2.0]]))

    @fullgrad.custom_jvp
    def log1pexp(x):
        return torch.log(1 + torch.exp(x))

    def log1pexp_jvp(p, t):
        (x,), (t,) = p, t
        return log1pexp(x), (1 - 1 / (1 + torch.exp(x))) * t

    log1pexp.defjvp(log1pexp_jvp)
    add("jvp log1pexp")((lambda x: log1pexp(x), [[0.3, -1.2, 3.0]]))

    @fullgrad.custom_jvp
    def tree(d):
        return {"b": torch.sin(d["a"]) * d["c"][0], "e": [d["c"][1]]}

    def tree_jvp(p, t):
        (d,), (g,) = p, t
        return tree(d), {"b": 2 * torch.cos(d["a"]) * g["a"] * d["c"][0] + g["c"][0], "e": [3 * g["c"][1] * d["a"]]}

    tree.defjvp(tree_jvp)

    def of_tree(x, y):
        o = tree({"a": x, "c": (y, x * y)})
        return o["b"] * o["e"][0]

    add("jvp trees")((of_tree, [[0.3, -1.2, 2.0], [0.7, 0.1, -0.4]]))

    @fullgrad.custom_jvp
    def with_defaults(x, y, c=1.5):
        return c * (x + y) ** 2

    def with_defaults_jvp(p, t):
        x, y, c = p
        tx, ty, _ = t
        return with_defaults(x, y, c), 2 * (x + y) * c * tx + 0.5 * ty * x

    with_defaults.defjvp(with_defaults_jvp)
    add("jvp defaults")((lambda x, y: with_defaults(x, y), [[0.3, -1.2], [0.7, 0.1]]))
    add("jvp keyword")((lambda x, y: with_defaults(x, y, c=2.0), [[0.3, -1.2], [0.7, 0.1]]))

    @functools.partial(fullgrad.custom_jvp, nondiff_argnums=(0, 2))
    def applied(f, x, k):
        return f(x) * k

    def applied_jvp(f, k, p, t):
        (x,), (t,) = p, t
        return applied(f, x, k), 3 * f(x) * t * k

    applied.defjvp(applied_jvp)
    add("jvp nondiff")((lambda x: applied(torch.cos, x, 2) * x, [[0.3, -1.2, 2.0]]))

    @fullgrad.custom_jvp
    def product(x, y):
        return x * y

    product.defjvps(lambda t, ans, x, y: t * y * 2, lambda t, ans, x, y: t * ans)
    add("jvp defjvps")((lambda x, y: product(torch.sin(x), y), [[0.3, -1.2], [0.7, 0.1]]))

    @fullgrad.custom_jvp
    def only_second(x, y):
        return x * y**2

    only_second.defjvps(None, lambda t, ans, x, y: t * x * y * 5)
    add("jvp defjvps none")((lambda x, y: only_second(x, y), [[0.3, -1.2], [0.7, 0.1]]))

    @fullgrad.custom_jvp
    def outer(x):
        return double_sine(x) ** 2

    outer.defjvp(lambda p, t: (outer(p[0]), 2 * double_sine(p[0]) * constant_slope(p[0]) * t[0]))
    add("jvp nested")((lambda x: outer(x) + log1pexp(x), [[0.3, -1.2, 2.0]]))

    @fullgrad.custom_jvp
    def reduced(x, w):
        return torch.sum(x * w)

    reduced.defjvp(lambda p, t: (reduced(*p), torch.sum(t[0] * p[1] * p[0]) + 2 * torch.sum(t[1])))
    add("jvp reduction")((lambda x, w: torch.sin(reduced(x, w)) * x, [[0.3, -1.2, 2.0], [0.5, 0.6, 0.7]]))

    @fullgrad.custom_jvp
    def two_outputs(x):
        return torch.sin(x), torch.cos(x)

    two_outputs.defjvp(lambda p, t: (two_outputs(p[0]), (t[0] * torch.exp(p[0]), 2 * t[0])))
    add("jvp two outputs")((lambda x: two_outputs(x)[0] * two_outputs(x)[1], [[0.3, -1.2, 2.0]]))

    add("jvp loop")((lambda x: thrice(lambda v: double_sine(v) * 0.9, x), [[0.3, -1.2, 2.0]]))

    # -- custom_vjp ---------------------------------------------------------------------------------------------
    @fullgrad.custom_vjp
    def sine_times(x, y):
        return torch.sin(x) * y

    sine_times.defvjp(
        lambda x, y: (sine_times(x, y), (torch.cos(x), torch.sin(x), y)), lambda r, g: (2 * r[0] * g * r[2], 3 * r[1] * g)
    )
    add("vjp basic")((lambda x, y: sine_times(x, y), [[0.3, -1.2], [0.7, 0.1]]))

    @fullgrad.custom_vjp
    def clip_gradient(lo, hi, x):
        return x

    clip_gradient.defvjp(lambda lo, hi, x: (x, (lo, hi)), lambda r, g: (None, None, torch.clamp(g, r[0], r[1])))
    add("vjp clip gradient")((lambda x: torch.sin(clip_gradient(-0.75, 0.75, x) * 3), [[0.3, -1.2, 2.0]]))

    @fullgrad.custom_vjp
    def residual_matters(x):
        return x**3

    residual_matters.defvjp(lambda x: (residual_matters(x), torch.exp(x)), lambda e, g: (g * e,))
    add("vjp residual")((lambda x: residual_matters(x) * x, [[0.3, -1.2, 2.0]]))

    @fullgrad.custom_vjp
    def tree_vjp(d, s):
        return {"b": torch.sin(d["a"]) * s, "c": d["c"]}

    tree_vjp.defvjp(
        lambda d, s: (tree_vjp(d, s), (d, s)), lambda r, g: ({"a": g["b"] * r[0]["c"], "c": g["c"] * r[1]}, g["b"] * 2)
    )

    def of_tree_vjp(x, y):
        o = tree_vjp({"a": x, "c": y}, x * y)
        return o["b"] + o["c"] * x

    add("vjp trees")((of_tree_vjp, [[0.3, -1.2], [0.7, 0.1]]))

    @functools.partial(fullgrad.custom_vjp, nondiff_argnums=(0,))
    def applied_vjp(f, x):
        return f(x)

    applied_vjp.defvjp(lambda f, x: (applied_vjp(f, x), x), lambda f, x, g: (f(x) * g * 2,))
    add("vjp nondiff")((lambda x: applied_vjp(torch.sin, x) * x, [[0.3, -1.2, 2.0]]))

    @fullgrad.custom_vjp
    def nothing_kept(x):
        return torch.cos(x)

    nothing_kept.defvjp(lambda x: (nothing_kept(x), None), lambda _, g: (g * 0.5,))
    add("vjp no residual")((lambda x: nothing_kept(x) * x, [[0.3, -1.2, 2.0]]))

    @fullgrad.custom_vjp
    def vjp_nested(x):
        return sine_times(x, x) + 1

    vjp_nested.defvjp(lambda x: (vjp_nested(x), x), lambda x, g: (g * sine_times(x, x + 1),))
    add("vjp nested")((lambda x: vjp_nested(x), [[0.3, -1.2, 2.0]]))

    @fullgrad.custom_vjp
    def two_in_two_out(x, y):
        return x * y, torch.sin(x + y)

    two_in_two_out.defvjp(lambda x, y: (two_in_two_out(x, y), (x, y)), lambda r, g: (g[0] * r[1] + g[1], g[1] * r[0] - g[0]))

    def of_two(x, y):
        a, b = two_in_two_out(x, y)
        return a * b

    add("vjp two outputs")((of_two, [[0.3, -1.2], [0.7, 0.1]]))

    @fullgrad.custom_vjp
    def reduced_vjp(x, w):
        return torch.sum(x * w)

    reduced_vjp.defvjp(lambda x, w: (reduced_vjp(x, w), (x, w)), lambda r, g: (g * r[1] * r[0], g * r[0]))
    add("vjp reduction")((lambda x, w: reduced_vjp(torch.sin(x), w) * x, [[0.3, -1.2, 2.0], [0.5, 0.6, 0.7]]))

    # -- custom_gradient ----------------------------------------------------------------------------------------
    @fullgrad.custom_gradient
    def gradient_of(x):
        return x**2, lambda g: (g * torch.sin(x),)

    add("gradient")((lambda x: gradient_of(x) * 2, [[0.3, -1.2, 2.0]]))

    @fullgrad.custom_gradient
    def gradient_of_two(x, y):
        s = torch.sin(x)
        return s * y, lambda g: (g * y, g * s * 3)

    add("gradient of two")((lambda x, y: gradient_of_two(x, y), [[0.3, -1.2], [0.7, 0.1]]))
    return out
