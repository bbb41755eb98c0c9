"""The run that a process records: its public object and its parts."""
