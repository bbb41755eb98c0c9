"""Media by arrays and files: their bytes, captions and rows."""

import pathlib
import struct
import wave

import numpy as np
import wandb

pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
with wave.open("tone.wav", "wb") as tone:
    tone.setparams((1, 2, 8000, 0, "NONE", ""))
    tone.writeframes(struct.pack("<4h", 0, 1, 2, 3))
pathlib.Path("page.html").write_text("<html><body>hi</body></html>")
run = wandb.init()
image = wandb.Image(pixels, caption="squares")
image.image.save("picture.png")
run.log({"image": image, "loss": 1.0})
run.log(
    {
        "images": [wandb.Image(pixels, caption="a"), wandb.Image(255 - pixels, caption="b")],
        "gray": wandb.Image(pixels[:, :, 0]),
    }
)
run.log(
    {
        "float": wandb.Image(pixels / 1.0),  # those between 0 and 1 are black in W&B
        "file": wandb.Image("picture.png"),
        "jpg": wandb.Image(pixels, file_type="jpg"),
    }
)
run.log(
    {
        "audio": wandb.Audio("tone.wav", caption="a tone"),
        "html": wandb.Html("<p>hi</p>"),
        "page": wandb.Html("page.html"),
        "raw": wandb.Html("<p>hi</p>", inject=False),
    }
)
run.log(
    {
        "hist": wandb.Histogram([1, 2, 2, 3, 3, 3], num_bins=4),
        "np_hist": wandb.Histogram(np_histogram=np.histogram(np.arange(10), bins=5)),
    }
)
table = wandb.Table(columns=["a", "b", "c"], data=[[1, "x", 0.5], [2, "y", None]])
table.add_data(3, "z", 1.5)
run.log({"table": table, "nested": {"image": wandb.Image(pixels), "x": 1}})
run.log({"mixed": wandb.Table(columns=["image", "n"], data=[[wandb.Image(pixels), 1]])})
run.finish()
