"""SGLang releases as subjects: their own code, lifted out of the wheel, over our cache and
controller.

``releases`` fetches and keeps sources, ``lift`` brings parts of them to life, ``subject`` joins the
two to a rank. Nothing of SGLang is imported or kept in this repository.
"""

from testbed.subjects.sglang.lift import LiftError
from testbed.subjects.sglang.releases import fetch
from testbed.subjects.sglang.subject import PREFIX, SglangSubject, lifted, versions

__all__ = ["PREFIX", "LiftError", "SglangSubject", "fetch", "lifted", "versions"]
