"""Other libraries report to chiplog: one folder for each, which imports its library only when it is used."""
