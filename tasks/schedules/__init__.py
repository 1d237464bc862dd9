"""What starts runs without a person: times of schedules, sensors and backfills, and what a run does when it is not its
turn. Prefect's part of it is in `flows`; no stage is carried out here.
"""
