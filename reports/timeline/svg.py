"""A drawing written down as SVG, inside a page or standing alone."""

from reports.templates import render, text_of
from reports.timeline.layout import lay_out
from reports.timeline.scene import Scene


def to_svg(scene: Scene, title: str) -> str:
    """An ``<svg>`` for a page that has the style sheet of timelines. title: its name when read out
    aloud.
    """
    return render("timeline.svg", drawing=lay_out(scene), title=title, style="")


def standalone(scene: Scene, title: str) -> str:
    """The same as a file of its own; light or dark, as whoever shows it prefers."""
    style = text_of("timeline.css")
    return render("timeline.svg", drawing=lay_out(scene), title=title, style=style)
