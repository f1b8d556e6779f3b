"""The pytest plugin of fullgrad: marks for the tests of ``fullgrad.testing.operator``, and a list of what they did not check.

pytest loads it in every run, so it is outside of the package, whose import would import torch. The name is that of `pytest -p`.
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
    """The name of the mark of a group, such as ``fullgrad_second_order``."""
    return f"fullgrad_{group.replace(' ', '_')}"


def pytest_configure(config) -> None:
    """Register the marks of the groups."""
    for group in GROUPS:
        config.addinivalue_line("markers", f"{mark_of(group)}: checks of the group {group!r} of fullgrad.testing")


def pytest_itemcollected(item) -> None:
    """Attach to a test what it did not check, so that it also arrives from a worker of xdist."""
    for line in getattr(getattr(item, "function", None), "not_checked", ()):
        item.user_properties.append(("fullgrad", f"{item.nodeid.partition('[')[0]}: {line}"))


def pytest_terminal_summary(terminalreporter) -> None:
    """Print a line for each property that an operator's tests did not check."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    properties = [p for report in reports for p in getattr(report, "user_properties", ())]
    lines = dict.fromkeys(line for name, line in properties if name == "fullgrad")
    if lines:
        terminalreporter.section("fullgrad")
        for line in lines:
            terminalreporter.write_line(line)
