"""What all commands share on a terminal: common options, exit statuses, and one-line errors.

What may not live here: a command of its own (``cli``), and anything about a case.
"""
