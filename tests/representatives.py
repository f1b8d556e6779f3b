"""Of the everyday cases the first of each operator class: what the short suite runs."""

from fullgrad._suite.cases import CASES, Case


def proves(case: Case) -> set[object]:
    """What a case proves first: the operator classes it names, public names where it names none, or else itself."""
    return set(case.smooth_forwards or case.covers or (case.name,))


def _first_of_each() -> list[Case]:
    seen: set[object] = set()
    chosen = []
    for case in CASES:
        if not case.exhaustive and not proves(case) <= seen:
            chosen.append(case)
            seen |= proves(case)
    return chosen


REPRESENTATIVES = _first_of_each()
