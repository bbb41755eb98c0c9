"""The journal that keeps events until the agent has them, and the thread that sends it."""
