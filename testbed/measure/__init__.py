"""Programs that measure the testbed itself (``python -m testbed.measure.NAME``): soaks,
the comparison with other harnesses, the nightly run, the GPU check.

Not part of the product: no other room imports from here.
"""
