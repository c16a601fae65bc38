"""Many scenarios by many subjects: one verdict a cell (``run``), and cells held to what is pinned
(``pins``).

What may not live here: tables and pages (``reports``), and the options of the command (``cli``).
"""
