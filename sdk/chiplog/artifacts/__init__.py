"""Artifacts: named, versioned sets of files, from a directory of the training and back."""
