"""The C part of the SDK: what a training calls in every step. The same functions exist in Python."""
