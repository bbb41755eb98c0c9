"""The delivery protocol of events and files, without sockets or threads."""
