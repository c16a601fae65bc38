"""Real ranks: a Fleet (controller side), its hosts (one per torchrun rank) and their disposable
ranks.

``Fleet`` is the entry; ``LastingFleet`` starts another one when a host is lost; at a ``Meeting``
hosts come together that were started elsewhere. The controller side knows nothing of caches; what
runs in a rank imports nothing of the controller.
"""

from testbed.fleet.fleet import Fleet
from testbed.fleet.lasting import AnyFleet, LastingFleet, MakesFleet
from testbed.fleet.remote import Meeting

__all__ = ["AnyFleet", "Fleet", "LastingFleet", "MakesFleet", "Meeting"]
