"""One run of this process: its settings, and everything that training code calls on it."""
