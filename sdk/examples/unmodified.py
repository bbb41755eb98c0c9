"""A training script that knows nothing of chiplog.

Run: `chiplog run --project unmodified --tag first -- python unmodified.py`
"""

import sys

for epoch in range(3):
    print(f"epoch {epoch}: loss {1 / (epoch + 1):.2f}")
print("no space left", file=sys.stderr)
sys.exit(3)
