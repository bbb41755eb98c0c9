"""The Trainer of Transformers in two processes; the second one goes on in the same run, from a checkpoint."""

import subprocess
import sys

from expected import Expected
from hf_model import Noise, RankTrainer, add_recorded, arguments, model

from chiplog.integrations.huggingface import ChiplogCallback

if len(sys.argv) > 1:
    steps = int(sys.argv[1])
    given = arguments(max_steps=4, save_steps=2, report_to="none")
    callback = ChiplogCallback(run_id="continued-by-transformers", label="rank0", name="continued")
    trainer = RankTrainer(model(), given, train_dataset=Noise(), callbacks=[callback])
    before = len(trainer.state.log_history)
    if steps == 2:
        given.max_steps = 2
    trainer.train(resume_from_checkpoint=steps == 4)
    if steps == 4:  # what it read from the checkpoint was logged before
        trainer.state.log_history = [entry for entry in trainer.state.log_history if entry["step"] > 2]
    trainer.write_down(f"of{steps}-")
else:
    expected = Expected("transformers")
    for steps in (2, 4):
        subprocess.run([sys.executable, __file__, str(steps)], check=True)
        add_recorded(expected, f"of{steps}-")
    # The other run is that of `chiplog run`.
    expected.note(runs=2, name="continued", events={"checkpoint": 2})
    expected.write()
