"""Stable-Baselines3 as W&B's page prints it: sync_tensorboard, monitor_gym, VecVideoRecorder and WandbCallback."""

import wandb
from drawn_env import DrawnEnv
from expected import Expected
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecVideoRecorder
from wandb.integration.sb3 import WandbCallback

expected = Expected("stable_baselines3")


class Recorder(KVWriter, BaseCallback):
    """Writes down what the algorithm reports to TensorBoard, from its start on."""

    def _on_training_start(self):
        self.logger.output_formats.append(self)

    def _on_step(self):
        return True

    def write(self, key_values, key_excluded, step=0):
        values = {key: value for key, value in key_values.items() if "tensorboard" not in (key_excluded[key] or ())}
        expected.add(step, {**values, "global_step": step})

    def close(self):
        pass


config = {"policy_type": "MlpPolicy", "total_timesteps": 96}
run = wandb.init(config=config, sync_tensorboard=True, monitor_gym=True, save_code=True)


def make_env():
    return Monitor(DrawnEnv())


env = DummyVecEnv([make_env])
env = VecVideoRecorder(env, f"videos/{run.id}", record_video_trigger=lambda x: x == 40, video_length=20)
model = PPO(
    config["policy_type"],
    env,
    verbose=1,
    tensorboard_log=f"runs/{run.id}",
    n_steps=32,
    batch_size=16,
    n_epochs=2,
    seed=0,
    device="cpu",
)
saver = WandbCallback(gradient_save_freq=4, model_save_path=f"models/{run.id}", verbose=2)
model.learn(total_timesteps=config["total_timesteps"], callback=[Recorder(), saver])
run.finish()
expected.add_media(32, "videos", f"videos/{run.id}/rl-video-step-40-to-step-60.mp4")
expected.note(
    config={**config, "algo": "PPO", "n_steps": 32, "batch_size": 16},
    files=["code/sb3_wandb.py", "model.zip"],
)
expected.write()
