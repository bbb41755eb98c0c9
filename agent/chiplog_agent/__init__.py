"""The sidecar of one node: takes what ranks log, adds statistics, spools, forwards."""
