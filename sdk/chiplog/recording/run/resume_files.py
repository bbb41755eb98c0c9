"""The files on this node from which a later attempt continues one run: the step count, and that it has not finished."""

from chiplog.recording.log.step_count import StepCount
from chiplog.recording.resume.step_counter import STEPS, StepCounterFile
from chiplog.recording.resume.unfinished_runs import UNFINISHED, UnfinishedRun
from chiplog.recording.run.group_membership import GroupMembership
from chiplog.recording.run.run_journal import RunJournal
from chiplog.settings import RunSettings


class ResumeFiles:
    """The files of one run. Ranks of one node share that of the unfinished run."""

    def __init__(
        self, settings: RunSettings, membership: GroupMembership, count: StepCount, journal: RunJournal
    ) -> None:
        self._settings = settings
        self._membership = membership
        self._count = count
        self._journal = journal
        self.counter = StepCounterFile(settings.places.local / STEPS)
        self._unfinished = UnfinishedRun(settings.places.local / UNFINISHED, settings.unfinished_key)

    def load(self) -> None:
        """Continue the count of the label's last attempt."""
        self._count.continue_from(self.counter.load(self._membership.identity, self._settings.label_given))

    def save(self) -> None:
        """Write the count, and that the run has started. The sender thread calls this."""
        self.counter.save(self._count.to_keep)
        self._note_unfinished()

    def save_last(self) -> None:
        """Write the count of a run that ends."""
        self.counter.save(self._count.to_keep, is_last=True)

    def note_end(self, *, is_normal: bool) -> None:
        """Note whether a run that ends has finished."""
        if not is_normal:
            self._note_unfinished()
        elif self._membership.identity.primary and not self.counter.is_refused:  # safeguard: finished-run-not-resumed
            self._unfinished.clear(self._membership.identity.run_id)

    def begin_in_child(self) -> None:
        """Count as a forked child: never loaded, because no later process uses its label."""
        self.counter = StepCounterFile(self._settings.places.local / STEPS)

    def _note_unfinished(self) -> None:
        identity, places = self._membership.identity, self._settings.places
        is_noting = identity.primary or identity.local_rank == 0
        if is_noting and not identity.joined_existing_run and not self.counter.is_refused:
            parent = places.local / "offline" if self._settings.mode == "offline" else places.journals
            self._unfinished.note(identity.run_id, identity.launch, parent / self._journal.producer.hex())
