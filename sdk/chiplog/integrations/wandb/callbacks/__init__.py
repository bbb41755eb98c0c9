"""W&B's callbacks for Keras, Stable-Baselines3, XGBoost and LightGBM."""
