"""Device timing, device values and model norms, if the training code uses torch. Nothing here imports torch."""
