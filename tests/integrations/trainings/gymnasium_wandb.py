"""gymnasium's RecordVideo with `wandb.init(monitor_gym=True)`: each film is logged when it is written."""

import gymnasium
import wandb
from drawn_env import DrawnEnv
from expected import Expected

expected = Expected("gymnasium")
N_EPISODES = 3
wandb.init(monitor_gym=True, config={"episodes": N_EPISODES}, tags=["tiny"])
env = gymnasium.wrappers.RecordVideo(DrawnEnv(), "films", episode_trigger=lambda episode: True)
step = 0
for episode in range(N_EPISODES):
    env.reset(seed=episode)
    if episode > 0:
        step += 1  # the film of the episode before was logged
    is_over, total = False, 0.0
    while not is_over:
        _, reward, is_over, _, _ = env.step(episode % 2)
        total += reward
    wandb.log({"return": total})
    expected.add(step, {"return": total})
    step += 1
env.close()
wandb.finish()
for episode in range(N_EPISODES):
    expected.add_media(2 * episode + 1, "videos", f"films/rl-video-episode-{episode}.mp4")
expected.note(config={"episodes": N_EPISODES}, tags=["tiny"])
expected.write()
