"""A prefill-only pipeline around the subject: real messages from stage to stage, modelled compute.

A step of a stage: wait for the activations that were sent in the step before; receive this
microbatch's; compute (time is spent, nothing is calculated); send them on; start the writes of what
was computed and the loads of the prefixes of the requests admitted; run the subject's check. A
transfer is ready after its latency and its bytes over the link, behind those that were before it.
"""

import time
from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.distributed as dist

from testbed.bench.plans import Model, PipelinePlan, Point
from testbed.bench.ranks.pause import burn_us, sleep_us
from testbed.bench.ranks.place import Place
from testbed.bench.schedule import Step, schedule
from testbed.cache import TransferController
from testbed.protocols.groups import Groups
from testbed.rank.assemble import RankContext
from testbed.scripted_events import Readiness

_WARMUP = 5


class Link:
    """One direction between device and host, one transfer after the other."""

    def __init__(self, model: Model) -> None:
        self._latency_us = model.link_latency_us
        self._us_per_token = model.kv_bytes_per_token / (model.link_gb_s * 1e3)
        self._free_us = 0.0

    def readiness(self, tokens: int, now_us: float) -> Readiness:
        """When a transfer that is enqueued now will be ready."""
        self._free_us = max(self._free_us, now_us) + tokens * self._us_per_token
        return Readiness.ms((self._free_us + self._latency_us - now_us) / 1e3)


class Activations:
    """The real messages of the pipeline, over its group under tag 0."""

    def __init__(self, groups: Groups, floats: int) -> None:
        self._groups = groups
        self._pipeline = groups.carrier.pp
        self._received = torch.zeros(floats, device=groups.carrier.device)
        self._sent: dist.Work | None = None

    def receive(self) -> None:
        """Of this microbatch, from the stage above."""
        if self._pipeline is not None and not self._groups.leads:
            dist.recv(self._received, group_src=self._groups.at.pp - 1, group=self._pipeline)

    def send(self) -> None:
        """On to the stage below; waited for in the next step."""
        below = self._groups.at.pp + 1
        if self._pipeline is not None and below < self._groups.topology.pp:
            activations = torch.zeros_like(self._received)
            sent = dist.isend(activations, group_dst=below, group=self._pipeline)
            self._sent = cast(dist.Work, sent)

    def drain(self) -> None:
        """Wait for what was sent."""
        if self._sent is not None:
            self._sent.wait()
            self._sent = None


class Pipeline:
    """One rank of it under one subject at one point. compute_ns, check_ns: of the counted steps."""

    def __init__(self, plan: PipelinePlan, place: Place, subject: str, point: Point) -> None:
        model = plan.model
        total = _WARMUP + point.steps
        steps = schedule(point.length, model.shared_prefix, model.chunk_tokens, total)
        pieces = sum(len(step.computed) + len(step.loaded) for step in steps)
        self._warmup, self._counted = steps[:_WARMUP], steps[_WARMUP:]
        self._point = point
        self._spend = burn_us if model.burn else sleep_us
        self._context: RankContext = place.subject(subject, pages=pieces)
        self._activations = Activations(place.groups, model.activation_floats)
        self._writes, self._loads = Link(model), Link(model)
        self._block = 0
        self._place = place
        self.compute_ns = 0
        self.check_ns = 0

    def run(self) -> int:
        """All steps; nanoseconds of the counted ones together."""
        self._place.meet()
        for step in self._warmup:
            self._step(step)
        self.compute_ns = self.check_ns = 0
        began = time.perf_counter_ns()
        for step in self._counted:
            self._step(step)
        elapsed = time.perf_counter_ns() - began
        self._activations.drain()
        self._context.subject.drain_sends()
        return elapsed

    @property
    def input_tokens(self) -> int:
        """Of the counted steps."""
        return sum(step.input_tokens for step in self._counted)

    def _step(self, step: Step) -> None:
        now = time.perf_counter_ns
        self._context.begin_step()
        self._activations.drain()
        self._activations.receive()
        began = now()
        self._spend(self._compute_us(step))
        self.compute_ns += now() - began
        self._activations.send()
        self._transfers(step)
        began = now()
        self._context.subject.check_hicache_events()
        self.check_ns += now() - began

    def _compute_us(self, step: Step) -> float:
        if self._point.step_us is not None:
            return self._point.step_us
        return sum(step.computed) * self._point.us_per_token

    def _transfers(self, step: Step) -> None:
        controller = self._context.bench.controller
        assert controller is not None, "no fault takes it away here"
        now_us = time.perf_counter_ns() / 1e3
        for tokens in step.computed:
            self._write(controller, self._writes.readiness(tokens, now_us))
        for tokens in step.loaded:
            self._load(controller, self._loads.readiness(tokens, now_us))

    def _write(self, controller: TransferController, readiness: Readiness) -> None:
        inserted = self._context.bench.cache.insert((self._next(),))
        assert inserted is not None, "there is a page for every piece"
        if controller.write(inserted.leaf, f"w{self._block}", readiness):
            self._context.subject.track_write(inserted.leaf.id)

    def _load(self, controller: TransferController, readiness: Readiness) -> None:
        node = self._context.bench.cache.plant_on_host((self._next(),))
        if controller.load(node, f"l{self._block}", readiness):
            self._context.subject.track_load(node.id)

    def _next(self) -> int:
        self._block += 1
        return self._block


def figures(plan: PipelinePlan, place: Place) -> Iterator[dict[str, Any]]:
    """A round at a time ``{"pipeline": [[point, subject, elapsed, compute, check, tokens], ...]}``:
    nanoseconds of all counted steps together, and their input tokens."""
    for _ in range(plan.rounds):
        yield {
            "pipeline": [
                [number, subject, *_run(plan, place, subject, point)]
                for number, point in enumerate(plan.points)
                for subject in plan.subjects
            ]
        }


def _run(plan: PipelinePlan, place: Place, subject: str, point: Point) -> tuple[int, int, int, int]:
    pipeline = Pipeline(plan, place, subject, point)
    elapsed = pipeline.run()
    return elapsed, pipeline.compute_ns, pipeline.check_ns, pipeline.input_tokens
