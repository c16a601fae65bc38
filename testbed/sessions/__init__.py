"""A session of runs: finding scenarios (``catalog``), running one (``execute``), keeping what it
left (``store``, ``result``) and finding it again (``finding``).

What may not live here: what a run looks like on paper (``reports``) and option parsing but for the
options of several machines (``nodes``).
"""
