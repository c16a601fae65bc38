"""``extra-sync``: a rank makes one round more of the subject's check."""

from testbed.faults.base import Timed, Trigger
from testbed.workloads.base import Bench


class ExtraSync(Timed, frozen=True, tag_field="kind", tag="extra-sync"):
    """One more round of ``check_hicache_events`` in each step in which it holds."""

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Add a round."""

        def add(rounds: int) -> int:
            if not self.holds_in(bench.clock.step):
                return rounds
            fired("one round more")
            return rounds + 1

        bench.hooks.rounds.append(add)
