"""Programs that nobody here wrote, and programs of the same kinds, run bare and under the recorder.

Sound ones must give the same results both ways and the verdict ``ok``; broken ones must be found,
with the rank and the operation that are wrong named first. ``programs`` holds them, ``catalog``
says what each is run with and how it is broken, ``table`` runs them; ``python -m cases.peers``
prints the table.
"""
