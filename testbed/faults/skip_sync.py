"""``skip-sync``: a rank leaves rounds of the subject's check out."""

from testbed.faults.base import Timed, Trigger
from testbed.workloads.base import Bench


class SkipSync(Timed, frozen=True, tag_field="kind", tag="skip-sync"):
    """No round of ``check_hicache_events`` in the steps in which it holds."""

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Take the rounds away."""

        def skip(rounds: int) -> int:
            if not rounds or not self.holds_in(bench.clock.step):
                return rounds
            fired("round left out")
            return 0

        bench.hooks.rounds.append(skip)
