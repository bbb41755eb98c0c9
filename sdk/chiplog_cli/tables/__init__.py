"""Tables and values as text: for a terminal, a pipe or a file."""
