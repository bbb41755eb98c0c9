"""The page of `chiplog ui`: a web server that is a client of the collector, and the files that a browser loads."""
