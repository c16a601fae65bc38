"""The timeline of one run: a lane per rank, steps as columns, drawn as SVG.

``scene`` says what is to be seen, in steps and rounds; ``layout`` where it goes, in pixels; ``svg``
writes it down. ``draw`` does all three.
"""

from reports.timeline.layout import lay_out
from reports.timeline.scene import Scene, scene
from reports.timeline.svg import standalone, to_svg

__all__ = ["Scene", "lay_out", "scene", "standalone", "to_svg"]
