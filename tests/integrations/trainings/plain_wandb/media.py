"""Media by arrays and files: their bytes, captions and rows."""

import pathlib
import struct
import wave

import numpy as np
import wandb
from PIL import Image

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
ids = np.arange(64, dtype=np.uint8).reshape(8, 8) // 22
boxes = {
    "predictions": {
        "box_data": [
            {"position": {"minX": 0.1, "maxX": 0.2, "minY": 0.3, "maxY": 0.4}, "class_id": 1, "scores": {"iou": 0.9}},
            {"position": {"middle": [4, 4], "width": 2, "height": 3}, "domain": "pixel", "class_id": 2},
        ],
        "class_labels": {1: "cat", 2: "dog"},
    },
    "truth": {
        "box_data": [{"position": {"minX": 0, "maxX": 1, "minY": 0, "maxY": 1}, "box_caption": "all"}],
        "class_labels": {},
    },
}
masks = {"truth": {"mask_data": ids, "class_labels": {0: "sky", 1: "tree"}}, "plain": {"mask_data": ids * 2}}
run.log(
    {
        "drawn_over": wandb.Image(pixels, caption="over", boxes=boxes, masks=masks),
        "some_drawn_over": [wandb.Image(pixels), wandb.Image(pixels, masks=masks), wandb.Image(pixels, boxes=boxes)],
    }
)
frames = [Image.fromarray(pixels), Image.fromarray(255 - pixels)]
frames[0].save("film.gif", save_all=True, append_images=frames[1:])
run.log({"film": wandb.Video("film.gif", caption="a film", format="gif")})
table = wandb.Table(columns=["a", "b", "c"], data=[[1, "x", 0.5], [2, "y", None]])
table.add_data(3, "z", 1.5)
run.log({"table": table, "nested": {"image": wandb.Image(pixels), "x": 1}})
run.log({"mixed": wandb.Table(columns=["image", "n"], data=[[wandb.Image(pixels), 1]])})
run.finish()
