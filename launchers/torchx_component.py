"""A TorchX component that starts the hosts of a fleet, one replica per node.

``torchx run -s local_cwd launchers/torchx_component.py:hosts --nodes 2 --fleet_file FILE``; in
place of ``local_cwd`` any of TorchX's schedulers, such as ``slurm`` or ``kubernetes``. The
controller runs elsewhere and waits; FILE, which it wrote, must be readable at that path in every
replica. TorchX itself is an extra: requirements-torchx.txt.
"""

import sys

from torchx import specs

from testbed.fleet.fleet_file import FLEET_FILE_ENV


def hosts(
    nodes: int,
    fleet_file: str,
    image: str = "",
    python: str = sys.executable,
    cpu: int = 2,
    memory_mb: int = 4096,
) -> specs.AppDef:
    """The hosts of one fleet; the file of its controller says how many there are on each node.

    Args:
        nodes: replicas, as many as the controller's --nodes
        fleet_file: path of the controller's fleet file, as the replicas see it
        image: container image or folder that holds this checkout and its requirements
        python: interpreter inside the image
        cpu: cores of a replica
        memory_mb: memory of a replica in MiB
    """
    return specs.AppDef(
        name="testbed-hosts",
        roles=[
            specs.Role(
                name="node",
                image=image,
                entrypoint=python,
                args=[
                    "-m",
                    "launchers.torchrun_node",
                    "--node",
                    specs.macros.replica_id,
                ],
                env={FLEET_FILE_ENV: fleet_file},
                num_replicas=nodes,
                resource=specs.Resource(cpu=cpu, gpu=0, memMB=memory_mb),
            )
        ],
    )
