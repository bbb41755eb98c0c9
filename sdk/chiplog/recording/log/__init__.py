"""The calls of a training loop: values, phases and steps into the journal."""
