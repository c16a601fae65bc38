"""What the benchmark runs in a rank: subjects and bare loops, interleaved, and timed on the spot.

Nothing here imports the controller's side, nor judges a figure: it goes home as ``Measured``.
"""
