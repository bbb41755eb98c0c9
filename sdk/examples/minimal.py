"""The smallest program that chiplog records: three lines around a loop, and nothing to configure or to start first."""

import chiplog

run = chiplog.init(project="minimal", config={"rate": 0.05})
x = 4.0
for step in range(100):
    x -= 0.05 * 2 * x  # gradient descent on x²
    run.log({"x": x, "loss": x * x}, step=step)
run.finish()
print(f"""now type: chiplog sql "SELECT step, value FROM metrics WHERE run_id = '{run.id}' AND key = 'loss'" """)
