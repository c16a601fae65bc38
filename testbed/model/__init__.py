"""The data: what to run (``scenario``, ``topology``), what the ranks recorded (``events``,
``record``), how it is judged (``verdict``), and the errors.

What may not live here: torch, the disk but for reading a scenario or a record, anything that runs.
Every other room may import this one; it imports none.
"""
