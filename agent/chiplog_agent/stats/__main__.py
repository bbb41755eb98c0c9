"""`python -m chiplog_agent.stats`: the sampler process."""

from chiplog_agent.stats.sampler import main

if __name__ == "__main__":
    main()
