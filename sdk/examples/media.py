"""Images, a table, sound and a figure, each beside the numbers of its step.

Run: `python media.py`
"""

import math

import numpy as np

import chiplog

run = chiplog.init(project="media", label="trainer")
for step in range(3):
    samples = np.random.rand(2, 32, 32, 3)  # two images: height, width, channel; floats in 0..1
    run.log({"loss": 1 / (step + 1), "samples": [chiplog.Image(image, caption="a sample") for image in samples]})
rows = [["seven", 7, 0.9], ["one", 7, 0.6]]
tone = [math.sin(2 * math.pi * 440 * n / 8_000) for n in range(8_000)]  # one second
run.log(
    {
        "errors": chiplog.Table(columns=["truth", "digit", "confidence"], data=rows),
        "tone": chiplog.Audio(tone, sample_rate=8_000),
        "note": chiplog.Html("<p>All digits look <b>alike</b>.</p>"),
    }
)
run.finish()
