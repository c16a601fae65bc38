"""integrity: the bytes a transfer brings are the bytes that belong there, page by page."""

from collections.abc import Iterable, Iterator

from testbed.analysis.sides import Breach, breaches
from testbed.analysis.view import View
from testbed.model.verdict import Finding

NAME = "integrity"


def check(view: View) -> Iterable[Finding]:
    """No completed write or load left a wrong page behind. The first one of each rank is told."""
    return breaches(NAME, _wrong(view))


def _wrong(view: View) -> Iterator[Breach]:
    for rank in view.ranks.values():
        for step, share in rank.steps.items():
            bad = next((done for done in share.completes if done.bad_pages), None)
            if bad is not None:
                what = f"completed {bad.key} with {bad.bad_pages} wrong pages"
                yield Breach(step, bad.queue, rank.rank, what)
                break
