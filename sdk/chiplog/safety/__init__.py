"""Keep chiplog from harming the training: input that is wrong, exceptions, secrets."""
