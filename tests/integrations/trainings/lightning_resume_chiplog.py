"""chiplog's logger and callback for Lightning in two processes; the second one resumes from a checkpoint."""

import json
import subprocess
import sys

import lightning
from expected import Expected
from lightning_model import Model, Recorder, add_recorded, data

from chiplog.integrations.lightning import ChiplogCallback, ChiplogLogger

if len(sys.argv) > 1:
    max_epochs = int(sys.argv[1])
    recorder = Recorder()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=max_epochs,
        log_every_n_steps=1,
        logger=[ChiplogLogger(run_id=f"{sys.argv[2]}", label="rank0", name="tiny"), recorder],
        callbacks=[ChiplogCallback()],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(recorder), data(), data(), ckpt_path=sys.argv[3] if max_epochs > 1 else None)
    print(json.dumps(trainer.checkpoint_callback.best_model_path))
else:
    expected = Expected("lightning")
    checkpoint = ""
    for max_epochs in (1, 2):
        command = [sys.executable, __file__, str(max_epochs), "continued-by-lightning", checkpoint]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
        checkpoint = json.loads(printed.splitlines()[-1])
        add_recorded(expected)
    # The other run is that of `chiplog run`.
    expected.note(runs=2, name="tiny", events={"checkpoint": 2})
    expected.write()
