"""What a record means, before anybody judges it: the ranks' events as one ``View``, logical time,
which send met which receive, and who waits for whom.

Pure functions of a record, for oracles and reports alike. What may not live here: findings and
verdicts (``oracles``), wording for people (``reports``), torch.
"""
