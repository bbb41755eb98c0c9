"""What training code calls on the package: init, setup, and the functions of a run."""
