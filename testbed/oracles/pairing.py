"""pairing: the n-th operation of a channel is the same operation on everyone who takes part."""

from collections.abc import Iterable

from testbed.analysis.logical_time import depths
from testbed.analysis.view import View
from testbed.model.verdict import Finding
from testbed.oracles.pairing_collectives import unlike_collectives
from testbed.oracles.pairing_messages import unlike_messages, used_buffers

NAME = "pairing"
SAME_SITE = "same-site"
"""Promise that all who take part in an operation come to it by the same functions, in one step."""


def check(view: View) -> Iterable[Finding]:
    """Collectives of a group agree in kind, root, reduce op, shape and dtype, and new groups in
    their members. A message is received with the length, dtype and values it was sent with; over
    NCCL, which knows no tags and gives the n-th receive the n-th message of its sender, also under
    the tag it was sent under. The buffer of an operation that was not waited for yet is left alone.

    Where the subject promises ``same-site``, all of them also agree in the functions that called
    and in the step, but for the model's messages, which may lag, for threads, which have no step,
    and for operations of which no caller is known. Elsewhere it is learned from the run which call
    sites belong together, and only what contradicts that is a violation (``crossings``); where the
    run ended in a deadlock, so is a collective of which one member had made more or fewer than the
    others.

    Only what both sides entered is compared: a receive without a send, or a collective entered by
    some, is for the hang and deadlock reports. Only the first mismatch of a channel is reported: it
    shifts the rest. Of several the one that came before the others comes first. Not compared are
    the shape of a message (to receive a matrix into a flat buffer is common), and the sizes of
    collectives whose members may lawfully differ in them (``SIZES_APART``).
    """
    strict = view.record.promises.get(SAME_SITE) is True
    found = [
        *unlike_collectives(view, NAME, strict),
        *unlike_messages(view, NAME, strict),
        *used_buffers(view, NAME),
    ]
    if len(found) > 1:
        depth = depths(view)
        found.sort(key=lambda one: (one.finding.step, depth.get(one.at, 0)))
    return [one.finding for one in found]
