"""The pictures of operators, and those of the README."""

import itertools
import re
import sys
from pathlib import Path

import pytest
import torch

pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture
def pictures(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "docs" / "_ext"), *sys.path])
    pyplot.switch_backend("agg")
    import pictures

    yield pictures
    pyplot.close("all")


def shown_labels(axes):
    """The labels of the ticks that are drawn, and the title."""
    for axis, texts in ((0, axes.get_xticklabels()), (1, axes.get_yticklabels())):
        low, high = sorted(axes.get_xlim() if axis == 0 else axes.get_ylim())
        yield from (text for text in texts if low <= text.get_position()[axis] <= high)
    yield axes.title


@pytest.mark.long(but=1)
@pytest.mark.parametrize("path", ["fullgrad.safe.asin", "fullgrad.safe.where", "fullgrad.soft.subset_marginals"])
def test_no_label_is_cut_or_behind_another_panel(pictures, path):
    """Large negative numbers keep their minus signs."""
    pictures.draw(path)
    figure = pyplot.gcf()
    figure.canvas.draw()
    panels = [axes.get_window_extent() for axes in figure.axes]
    for axes, panel in zip(figure.axes, panels, strict=True):
        boxes = [text.get_window_extent() for text in shown_labels(axes)]
        assert len(boxes) > 4
        assert all(figure.bbox.x0 <= b.x0 and b.x1 <= figure.bbox.x1 and figure.bbox.y0 <= b.y0 for b in boxes)
        assert not any(b.overlaps(other) for b in boxes for other in panels if other is not panel)


# --- One for each door of the README ----------------------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def doors(pictures, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import doors

    return doors


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", ["digits", "norm", "solver"])
def test_words_of_a_door_are_inside_and_apart(doors, name):
    """No label, title or word beside a curve is cut, or written over another."""
    pytest.importorskip("scipy")
    rows = {line: torch.linspace(10, 99, 50, dtype=torch.float64).expand(3, -1) for line in doors.LINES}
    figure = doors.draw(name, *[rows] * (name == "digits"))
    (axes,) = figure.axes
    words = [*shown_labels(axes), axes.xaxis.label, *axes.texts]
    assert len(axes.texts) == 3
    boxes = [text.get_window_extent() for text in words if text.get_text()]
    paper = figure.bbox
    assert all(paper.x0 <= b.x0 <= b.x1 <= paper.x1 and paper.y0 <= b.y0 <= b.y1 <= paper.y1 for b in boxes)
    assert not [(a, b) for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]


def test_curves_of_the_doors_are_right(doors):
    """Inside `completing` as by differences, where torch alone is not; derivatives of the solver by the formula."""
    pytest.importorskip("scipy")
    found = doors.second_derivatives(torch.linspace(-8, 12, 5, dtype=torch.float64))
    torch.testing.assert_close(found["fullgrad"], found["differences"], rtol=0, atol=1e-6)
    assert (found["torch"] - found["differences"]).abs().max() > 0.01
    anomaly, first, second = doors.solutions(mean := torch.linspace(-3, 3, 4, dtype=torch.float64), 0.5)
    torch.testing.assert_close(anomaly - 0.5 * anomaly.sin(), mean)
    torch.testing.assert_close(first, 1 / (1 - 0.5 * anomaly.cos()))
    torch.testing.assert_close(second, -0.5 * anomaly.sin() * first**3)


def test_colors_are_legible_on_white_and_on_black(pictures):
    """Lines and words have a contrast of three to one on the light and on the dark background of the site."""

    def luminance(color):
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for color in (*pictures.COLORS.values(), pictures.GRAY):
        for background in ("#FFFFFF", "#131416"):
            darker, lighter = sorted((luminance(color), luminance(background)))
            assert (lighter + 0.05) / (darker + 0.05) > 3, (color, background)


@pytest.mark.parametrize("name", ["digits", "norm", "solver"])
def test_a_picture_of_a_door_is_shown(name):
    """In the README and on the landing page, with words for those who cannot see it; negative numbers have their signs."""
    for page, path in ((DOCS.parent / "README.md", f"docs/pictures/{name}.svg"), (DOCS / "index.md", f"pictures/{name}.svg")):
        assert re.search(rf"!\[[^\]]{{40,}}\]\({path}\)", page.read_text())
    drawn = (DOCS / "pictures" / f"{name}.svg").read_text()
    labels = re.findall(r">(\D?\d[\d.%]*)</text>", drawn)
    assert len(labels) > 5
    assert {label[0] for label in labels if not label[0].isdigit()} == ({"\N{MINUS SIGN}"} if name != "digits" else set())
