"""System statistics of one node. Import from the modules: the sampler process must stay small."""
