"""The benchmark: what one agreement costs, and what fewer of them buy.

``command.run`` is the entry. The controller's side plans (``plans``), measures on a fleet
(``measure`` and one file per section), and shows (``document``, ``tables``, ``plots``,
``compare``). What runs in a rank lives in ``ranks``. ``harness`` is a benchmark of its own: what a
case costs in other harnesses.
"""
