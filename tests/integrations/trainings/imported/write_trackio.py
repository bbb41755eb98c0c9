"""Log two runs with every kind of value by Trackio, into the directory that TRACKIO_DIR names."""

from pathlib import Path

import numpy as np
import trackio

Path("saved.txt").write_text("a file")
for name in ("first run", "second"):
    config = {"lr": 0.1, "layers": [1, None, {"deep": True}]}
    run = trackio.init(project="mnist ü", name=name, group="g", config=config, auto_log_gpu=False)
    for step in range(100):
        trackio.log(
            {"train/loss": 1 / (step + 1), "nested": {"accuracy": step / 100}, "is_best": step % 2 == 0}, step=step
        )
    trackio.log({"odd": float("nan"), "huge": float("inf"), "low": float("-inf"), "note": "text ü"}, step=7)
    trackio.log({"image": trackio.Image(np.full((8, 8, 3), 99, np.uint8), caption="ü")})
    sound = (np.sin(np.arange(800) / 9) * 32_000).astype(np.int16)
    trackio.log({"sound": trackio.Audio(sound, sample_rate=8000), "words": trackio.Markdown("# hi")})
    trackio.log({"table": trackio.Table(columns=["a", "b"], data=[[1, "x"], [2, "y"]])})
    trackio.log({"weights": trackio.Histogram(np.arange(100))})
    trackio.log_system({"gpu": {"0": {"power": 99.5}}})
    trackio.alert("high", "loss is 9", level=trackio.AlertLevel.WARN)
    artifact = trackio.Artifact(f"model-{name[0]}", "model")
    artifact.add_file("saved.txt")
    run.log_artifact(artifact)
    trackio.finish()
