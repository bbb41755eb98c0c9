"""The web server of the page: who may use it, its clients of the collector, answers that pages share."""
