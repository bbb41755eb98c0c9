"""The read model: the questions that command line, page and Python ask about runs."""
