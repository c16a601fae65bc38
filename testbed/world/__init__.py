"""Real ranks: a Fleet (controller side), its hosts (one per torchrun rank) and their disposable
ranks.

``Fleet`` is the one entry. The controller side knows nothing of caches; what runs in a rank imports
nothing of the controller.
"""

from testbed.world.fleet import Fleet

__all__ = ["Fleet"]
