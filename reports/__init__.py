"""What people read: rows of results as table, JSON and failure reports.

Reads results as data and never talks to a live rank. What it writes goes to ``reports/out/``.
"""
