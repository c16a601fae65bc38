"""Which topologies and subjects the cases are spread over; where a selector names nobody a case is left out."""

PIPELINES = "pp2tp1 pp2tp2 pp4tp1 pp2tp1cp2"
EVERY = f"{PIPELINES} pp1tp4"

OURS = "batched separate fused"
RELEASES = "sglang==0.5.18 sglang==0.5.19 sglang==0.5.23"
SUBJECTS = f"{OURS} {RELEASES}"
