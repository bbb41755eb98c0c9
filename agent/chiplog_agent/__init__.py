"""The sidecar of one node: receives its ranks' events, adds statistics, spools, forwards."""
