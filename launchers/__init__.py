"""How a fleet gets started: the processes between the controller and its hosts."""
