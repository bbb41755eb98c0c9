"""An object whose every conversion raises."""


class Hostile:
    """Raise from whatever a logger may ask of a value."""

    def __repr__(self):
        raise RuntimeError("no repr")

    def __str__(self):
        raise RuntimeError("no str")

    def __float__(self):
        raise RuntimeError("no float")

    def __int__(self):
        raise RuntimeError("no int")

    def values(self):
        raise RuntimeError("no values")
