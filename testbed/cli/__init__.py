"""The command line: parsing, one function for each command, and nothing a test or a plugin needs.

What may not live here: whatever pytest needs as well. That is in ``sessions``, ``matrix``,
``reports`` or ``console``.
"""
