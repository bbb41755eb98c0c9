"""The process that receives events from agents and writes the log."""
