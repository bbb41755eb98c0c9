"""What each Python of a launcher test runs first: let torch start and end in half of the CPU time.

`import torch` makes half a million objects. The garbage collector would traverse them again and again while they are
made, and once more at the end of the process. Python imports this module by its name from PYTHONPATH.
"""

import atexit
import gc

import torch_exit  # noqa: F401

gc.set_threshold(100_000, 50, 100)
atexit.register(gc.freeze)  # the first one registered runs last: after everything that chiplog does at the end
