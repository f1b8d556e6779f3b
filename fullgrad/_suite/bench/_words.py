"""The words of the command line: importing them imports nothing else."""

TARGETS, SOFTTORCH, FAST = "targets", "softtorch", "fast"
DTYPES = ("float32", "float64", "float16", "bfloat16")
NO_GRADIENT, FORWARD, BACKWARD = "no gradient", "forward", "forward+backward"
PER_SAMPLE, JVP, COMPILED = "vmap(grad)", "jvp", "compiled"
WAYS = (NO_GRADIENT, FORWARD, BACKWARD, PER_SAMPLE, JVP, COMPILED)
