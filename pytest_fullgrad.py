"""The pytest plugin of fullgrad: the marks of the tests that ``fullgrad.testing.operator`` makes.

pytest loads it in every run, so it stands outside of the package, whose import would import torch.
"""

# The groups of checks; a test compares them with `fullgrad.testing.GROUPS`.
GROUPS = (
    "reverse",
    "forward",
    "second order",
    "third order",
    "gradcheck",
    "batching",
    "machinery",
    "randomness",
    "tracing",
    "value",
)


def mark_of(group: str) -> str:
    """The name of the mark of a group."""
    return group.replace(" ", "_")


def pytest_configure(config) -> None:
    """pytest's hook."""
    for group in GROUPS:
        config.addinivalue_line("markers", f"{mark_of(group)}: checks of the group {group!r} of fullgrad.testing")
