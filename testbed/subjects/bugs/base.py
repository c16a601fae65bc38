"""What every planted bug says of itself."""

from testbed.protocols import Batched, Fused
from testbed.subjects.minimal import MinimalSubject


class Planted:
    """Mixed into a sound protocol or subject whose one mistake the class then makes.

    report: where it was published; numbers are issues
    and pull requests of sgl-project/sglang unless another repository is named. summary: the mistake
    in one line. sound: the subject that is right in the same scenario, where that is another than
    the one the class is made of.
    """

    report: str
    summary: str
    sound: str = ""


class OverProtocol(MinimalSubject):
    """A subject that is wrong, or the ground of wrong ones, over a protocol that is right."""

    made_of: type[Batched] | type[Fused] = Batched
