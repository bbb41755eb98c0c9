"""How a run ends: its exit status, and what an exception leaves."""
