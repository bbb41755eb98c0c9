"""The run that a process records: its public object and the parts that it is made of."""
