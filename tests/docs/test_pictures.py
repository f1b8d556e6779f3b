"""The pictures of operators."""

import sys
from pathlib import Path

import pytest

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
