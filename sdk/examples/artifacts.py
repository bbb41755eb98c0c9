"""A data set and two versions of a model, and the better one read back.

Run: `python artifacts.py`
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import chiplog

with TemporaryDirectory() as directory, chiplog.init(project="artifacts", label="trainer") as run:
    corpus = chiplog.Artifact("corpus", type="dataset", metadata={"language": "en"})
    with corpus.new_file("words.txt") as file:
        file.write("seven one")
    run.log_artifact(corpus)
    checkpoint = Path(directory, "weights.pt")
    for epoch in range(2):
        checkpoint.write_text(f"weights of epoch {epoch}")
        run.log_model(checkpoint, name="digits", aliases=["best"] if epoch == 0 else [])
    run.use_artifact(corpus.wait())

with TemporaryDirectory() as directory, chiplog.init(project="artifacts", label="evaluator") as run:
    model = run.use_artifact("digits:best")  # tomorrow, on another host
    print(Path(model.download(directory), "weights.pt").read_text())
