"""Identities, decided in log order: runs, labels, attempts, the primary, and how each label ended."""

import itertools
import re
from typing import Any

from chiplog_collector.index.apply.apply_context import ApplyContext
from chiplog_collector.index.apply.authorization import matches_node
from chiplog_collector.index.apply.label_checks import LabelChecks
from chiplog_collector.index.apply.ledger import Ledger
from chiplog_collector.index.apply.state import Producer, Run
from chiplog_collector.index.apply.validation import clean, count_of, detail_of, digest_of, json_of, text_of
from chiplog_schemas.limits import NAME_CHARS_MAX, SEQ_END
from chiplog_schemas.model.codes import end_cause
from chiplog_schemas.model.end_text import cause_of_old_reason
from chiplog_schemas.model.events import (
    IDENTITY_FIELDS,
    RESUME_DEMANDS,
    STATE_FIELDS,
    STATES,
    marked_entries,
    select_typed,
)
from chiplog_schemas.storage.content_files import ANY_LABEL_FOLDER, invalid_path_reason

RUN_COLUMNS: dict[str, str] = marked_entries("run")
_COPIED_FIELDS = tuple(marked_entries("copied"))
_KEPT_FIELDS = {name: kind for name, kind in IDENTITY_FIELDS.items() if name not in marked_entries("agent_only")}
_STATE_FIELDS = {name: kind for name, kind in STATE_FIELDS.items() if name != "detail"}
_INT32_FIELDS = ("rank", "local_rank", "world_size")
# Limits of texts that the index keeps in memory forever. A name has NAME_CHARS_MAX, but …
_CHARS_MAX = {
    # … these are only for people
    **dict.fromkeys(("project", "name", "group", "job_type"), 1_024),
    "launch": 1_024,  # a launcher's ID, and a suffix that makes it unique
    "resume_launch": 1_024,
    "primary_launch": 1_024,
    "notes": 8_192,  # a page or two
    "reason": 2_000,  # one line
}
CONSOLE = "console"  # the role of a producer that sends the console output of another one
_UUID = re.compile("[0-9a-f]{32}")
LATE_US_MAX = 1 << 53  # 285 years
_ENTRIES_MAX = 64  # tags of a run, GPUs of a process


class RunRegistry:
    """The identities of a State. Every decision is recorded in the applier's batch."""

    def __init__(self, context: ApplyContext, labels: LabelChecks, ledger: Ledger) -> None:
        self._context = context
        self._labels = labels
        self._ledger = ledger
        self._state = context.state

    def identity(self, producer: Producer, seq: int, ts: int, body: Any) -> None:
        """Apply an identity of a producer. A later value replaces an earlier one."""
        said, cut = plain_fields(select_typed(body, _KEPT_FIELDS))
        if cut:
            message = f"identity: {', '.join(cut)} cut to the limit; shorten it"
            self._context.emit_event(producer, seq, ts, "bad_value", "warning", message, {"fields": cut})
        for name in _INT32_FIELDS:
            if not -(1 << 31) <= said.get(name, 0) < 1 << 31:
                del said[name]
        if said.get("role") == CONSOLE and self._is_of_deleted(producer, said):
            self._context.delete([producer])
            return
        if said.get("role") == CONSOLE and not self._take_console(producer, said):
            message = (
                f"identity: a console of {said.get('of', 'no producer')!r:.80}, or a producer of another role before"
            )
            self._context.emit_event(producer, seq, ts, "bad_value", "warning", message, {})
            return
        self._describe_process(producer, said, ts)
        if "run_id" in said and "label" in said:
            self._enter_run(producer, said, seq, ts)

    def _describe_process(self, producer: Producer, said: dict[str, Any], ts: int) -> None:
        """Note what an identity says about the process itself."""
        for name in _COPIED_FIELDS:
            if name in said:
                setattr(producer, name, said[name])
        self._locate_by_itself(producer, said)
        producer.sets_run = said.get("sets_run")
        producer.fallback = bool(said.get("fallback"))
        if not producer.are_gpus_resolved:  # safeguard: resolved-gpus-stay
            producer.gpus = said.get("gpus", producer.gpus)
        producer.parent = said.get("parent", producer.parent)
        if producer.uptime_us is None:
            producer.uptime_us = said.get("uptime")
        producer.started_at = said.get("started_at", producer.started_at or ts)
        self._context.batch.producers.add(producer.producer)

    def enter_imported(self, producer: Producer, run_id: str, label: str) -> Run:
        """Put a producer of an import into a run. Raises ValueError if the run has labels of other senders' nodes."""
        run = self._run(run_id, producer)
        members = self._state.members.get(run.run, {}).values()
        if not all(may_act_for(producer.nodes, mate) for mate in members):  # safeguard: import-joins-no-foreign-run
            raise ValueError(f"run {run_id} has labels of nodes that the sender's key does not cover")
        self._join(producer, run, label)
        return run

    def _enter_run(self, producer: Producer, said: dict[str, Any], seq: int, ts: int) -> None:
        """Put a producer into the run and under the label that its identity names."""
        run = self._demanded_run(said, producer, seq, ts)
        if "formerly" in said:
            self._merge(producer, run, said["formerly"], seq, ts)
        self._join(producer, run, said["label"])
        holders = [] if producer.is_primary else self._holders(run)
        self._claim(producer, run, bool(said.get("primary")), seq, ts)
        if producer.is_primary:
            self._emit_primary_moved(producer, holders, seq, ts)
        if producer.is_coauthor and not producer.is_primary:
            self._describe(run, {name: value for name, value in said.items() if value})  # wins over its ranks
        elif producer.is_primary or run.primary_label is None:
            self._describe(run, self._beside_parent(run, producer, said))

    def _locate_by_itself(self, producer: Producer, said: dict[str, Any]) -> None:
        """Note the host and PID of an identity. They count as the node and PID only if no agent has reported these."""
        producer.hostname = said.get("hostname", said.get("node", producer.hostname))
        producer.rank_pid = said.get("pid", producer.rank_pid)
        if producer.agent_node is None:
            producer.pid = producer.rank_pid
        if producer.agent_node is None or producer.is_remote:
            producer.node = said.get("node", producer.node)

    def locate(self, producer: Producer, about: dict[str, Any]) -> None:
        """Note where a producer's process runs, as its agent reported it. A report of a living process is kept."""
        found, _ = plain_fields(about)
        if producer.start_ticks is not None and "start" not in found:
            return
        producer.agent_node = found["node"]
        producer.is_remote = found.get("remote", False)
        if not producer.is_remote:
            producer.node = producer.agent_node
        producer.pid, producer.start_ticks = found.get("pid"), found.get("start")
        self._context.batch.producers.add(producer.producer)

    def assign_gpus(self, producer: Producer, gpus: list[Any]) -> None:
        """Note the GPUs of a producer as its agent resolved them."""
        producer.gpus, producer.are_gpus_resolved = plain_fields({"gpus": gpus})[0]["gpus"], True
        self._context.batch.producers.add(producer.producer)

    def _is_of_deleted(self, producer: Producer, said: dict[str, Any]) -> bool:
        """Return True if a producer that has no other role is the console of a deleted one."""
        of = said.get("of", "")
        # safeguard: label-not-deleted-as-console
        is_new = producer.run is None and producer.role in (None, CONSOLE)
        return is_new and bool(_UUID.fullmatch(of)) and bytes.fromhex(of) in self._state.deleted

    def _take_console(self, producer: Producer, said: dict[str, Any]) -> bool:
        """Note whose lines a console sends, and drop the fields that would make it a label.

        False: it is not a console.
        """
        of = said.get("of", "")
        if producer.run is not None or not _UUID.fullmatch(of):
            return False
        said.pop("run_id", None)
        self._state.set_owner(producer, self._context.producer(bytes.fromhex(of)))
        return producer.owner != producer.producer

    def _demanded_run(self, said: dict[str, Any], producer: Producer, seq: int, ts: int) -> Run:
        """Return the run of a producer, by its run ID and its `resume` requirement: see PROTOCOL.md.

        Decided once for a launch and a run ID: later producers of that launch follow, whatever happened to the run.
        """
        run_id, demand = said["run_id"], said.get("resume")
        if demand not in RESUME_DEMANDS:
            return self._run(run_id, producer)
        launch = said.get("resume_launch", said.get("launch", ""))
        known = self._state.demands.get((run_id, launch))  # safeguard: launch-in-one-run
        if known is not None:
            return self._run(self._state.runs_by_number[known].run_id, producer)
        is_there = self._is_there(run_id, launch)
        if is_there == (demand == "must"):
            run = self._run(run_id, producer)
        else:
            run = self._run(self._free_run_id(run_id), producer)
        self._state.demands[(run_id, launch)] = run.run
        self._context.batch.add("demands", (run_id, launch, run.run))
        if is_there != (demand == "must"):
            self._join(producer, run, said["label"])  # so that the row is in the run that people query
            why = "exists already" if is_there else "does not exist"
            message = f"resume={demand!r}, but run {run_id} {why}: {run.run_id} is used instead"
            body = {"resume": demand, "asked": run_id, "used": run.run_id}
            self._context.emit_event(producer, seq, ts, "resume_refused", "error", message, body)
        return run

    def _is_there(self, run_id: str, launch: str) -> bool:
        """Return True if a run of this name has a label of another launch, or of an earlier run of this one."""
        run = self._state.runs.get(run_id)
        passed = set()
        while run is not None and run.alias_of is not None and run.run not in passed:
            passed.add(run.run)
            run = self._state.runs_by_number[run.alias_of]
        members = self._state.members.get(run.run, {}) if run is not None else {}
        return any(mate.launch != launch or mate.state is not None for mate in members.values())

    def _free_run_id(self, run_id: str) -> str:
        """Return the first of `<run_id>-2`, `-3` … that does not exist."""
        for number in itertools.count(2):
            suffix = f"-{number}"
            candidate = run_id[: NAME_CHARS_MAX - len(suffix)] + suffix
            if candidate not in self._state.runs:
                return candidate
        raise AssertionError("numbers do not end")

    def _run(self, run_id: str, producer: Producer) -> Run:
        """Return the run that a producer's run ID names.

        If the name has become an alias of a run, that run, but only for producers on nodes that the key which created
        the alias covers.
        """
        run = self._state.runs.get(run_id)
        if run is None:
            run = self._state.add_run(Run(self._state.last_run + 1, run_id))
            self._context.batch.runs.add(run.run)
        passed = set()
        # safeguard: alias-binds-own-nodes
        while run.alias_of is not None and run.run not in passed and may_act_for(run.alias_nodes, producer):
            passed.add(run.run)  # keys that redirect to each other's runs could form a cycle
            run = self._state.runs_by_number[run.alias_of]
        return run

    def _merge(self, producer: Producer, run: Run, run_id: str, seq: int, ts: int) -> None:
        """Make a producer's provisional run an alias of the run that its ranks agreed on.

        All other members of the provisional run move too, and later producers that name it: children, and ranks that
        died before they learned the new name. The producer's key must cover each member. If it does not cover one, the
        run stays, and the members that the key covers move. A later producer is in the run that it names.
        """

        def refuse(why: str, *, stay: int, **more: str) -> None:
            message = f"{producer.label} reports that run {run_id} is {run.run_id}, but {why}"
            body = {"from": run_id, "to": run.run_id, "stay": stay, "nodes": producer.nodes, **more}
            self._context.emit_event(producer, seq, ts, "merge_refused", "warning", message, body)

        former = self._run(run_id, producer)
        if former is run or producer.run != former.run:
            return
        before = former.primary_label, former.primary_launch, former.primary_restart
        members = self._state.members[former.run]
        mates = [members[number] for number in sorted(members)]
        moved = [mate for mate in mates if mate is producer or may_act_for(producer.nodes, mate)]
        for mate in moved:
            self._join(mate, run, mate.label or "")
            mate.is_primary = mate.label == (run.primary_label or before[0])
            self._context.batch.producers.add(mate.producer)
        if run.primary_label is None and any(mate.label == before[0] for mate in moved):
            run.primary_label, run.primary_launch, run.primary_restart = before
        self._context.batch.runs |= {former.run, run.run}
        if len(moved) < len(mates):
            others = len(mates) - len(moved)
            why = (
                f"its key does not speak for {others} of its labels: they stay until they report the other run "
                "themselves"
            )
            refuse(why, stay=others)
            return
        if former.alias_of is not None:  # safeguard: alias-decided-once
            # The first alias stays: otherwise any key could redirect the producers that the name belongs to.
            meant = self._state.runs_by_number[former.alias_of].run_id
            refuse(f"it is already another name of {meant}: only {producer.label} moves", stay=0, **{"is": meant})
            return
        for column in RUN_COLUMNS.values():
            if not getattr(run, column) and column not in run.edited:
                setattr(run, column, getattr(former, column))
            setattr(former, column, [] if column == "tags" else None)  # only the name remains
        former.alias_of, former.alias_nodes = run.run, producer.nodes  # safeguard: late-agreement-merges-runs
        message = (
            f"run {run_id} is {run.run_id}: its ranks agreed on this ID after their start, and it has all their data"
        )
        self._context.emit_event(producer, seq, ts, "run_merged", "info", message, {"from": run_id, "to": run.run_id})

    def _join(self, producer: Producer, run: Run, label: str) -> None:
        """Put a producer under a label, and recount the label's attempts."""
        if (producer.run, producer.label) == (run.run, label):
            return
        if producer.run is not None and producer.label is not None:
            del self._state.members[producer.run][producer.producer]
            left = self._state.by_label[(producer.run, producer.label)]
            left.remove(producer)
            self._count_attempts(producer.run, producer.label)
            old = self._state.runs_by_number[producer.run]
            if not left and old.primary_label == producer.label:
                # The label was provisional and is unused now: restore the previous primary, else let any label claim.
                old.primary_label = old.primary_launch = None
                old.primary_restart = 0
                self._context.batch.runs.add(old.run)
                self._restore_primary(old)
        producer.run, producer.label, producer.is_primary = run.run, label, False
        self._state.members.setdefault(run.run, {})[producer.producer] = producer
        mates = self._state.by_label.setdefault((run.run, label), [])
        launches = {mate.launch: mate.launch_order for mate in mates}
        producer.launch_order = launches.get(producer.launch, max(launches.values(), default=-1) + 1)
        mates.append(producer)
        self._count_attempts(run.run, label)

    def _restore_primary(self, run: Run) -> None:
        """Restore the primary that a provisional claim had deposed: it may have ended, and will not claim again."""
        candidates = [
            mate for mate in self._state.members[run.run].values() if mate.sets_run and mate.label is not None
        ]
        if candidates:
            heir = max(candidates, key=lambda mate: (mate.state is None, mate.producer))
            run.primary_label, run.primary_launch, run.primary_restart = heir.label, heir.launch, heir.restart
            heir.is_primary = True
            self._context.batch.producers.add(heir.producer)

    def _count_attempts(self, run: int, label: str) -> None:
        """Recount the label's attempts: by launch, then by restart count, then by log order."""
        mates = self._state.by_label[(run, label)]
        self._order_launches(mates)
        mates.sort(key=lambda mate: (mate.launch_order, mate.restart, mate.producer))
        for attempt, mate in enumerate(mates):
            if mate.attempt != attempt:
                mate.attempt = attempt
                self._context.batch.producers.add(mate.producer)

    def _order_launches(self, mates: list[Producer]) -> None:
        """Order a label's launches by their start, not by their arrival, if all are of one boot of one machine.

        Compares times since boot, which no clock change affects. Across several machines the order of arrival counts.
        """
        begun: dict[str, int] = {}
        for mate in mates:
            if mate.boot is None or mate.uptime_us is None or mate.boot != mates[0].boot:
                return
            launch = mate.launch or ""
            begun[launch] = min(mate.uptime_us, begun.get(launch, mate.uptime_us))
        orders = {launch: order for order, launch in enumerate(sorted(begun, key=lambda word: (begun[word], word)))}
        for mate in mates:
            if mate.launch_order != (order := orders[mate.launch or ""]):
                mate.launch_order = order
                self._context.batch.producers.add(mate.producer)

    def _claim(self, producer: Producer, run: Run, claims: bool, seq: int, ts: int) -> None:
        """Decide who is primary: within a launch the higher restart count, else the holder until it has ended."""
        if not claims:
            if producer.label == run.primary_label:
                producer.is_primary = True  # a later incarnation of the primary's label
            return
        if producer.is_primary:
            return
        same_label = run.primary_label == producer.label
        holders = self._state.by_label.get((run.run, run.primary_label or ""), [])
        if any(_is_parent(producer, holder) for holder in holders):  # safeguard: late-driver-not-refused
            self._share(producer)  # its ranks' rank 0 was applied before it
            return
        takes_over = any(_is_parent(holder, producer) for holder in holders)  # safeguard: child-rank-becomes-primary
        if run.primary_label is None or same_label or takes_over or self._can_take_primary(run, producer):
            if not same_label and run.primary_label is not None:
                # A launcher on another node, as srun has: its name and tags remain the run's.
                is_launched = any(holder.fallback and _names(producer, holder) for holder in holders)
                self._clear_primary(run, shares=takes_over or is_launched or self._is_shared(run, producer))
            run.primary_label = producer.label
            # A stale incarnation of the same label, delivered late, changes nothing.
            before = run.primary_restart if same_label and producer.launch == run.primary_launch else 0
            # safeguard: stale-restart-changes-nothing
            run.primary_launch, run.primary_restart = producer.launch, max(producer.restart, before)
            producer.is_primary = True
            self._context.batch.runs.add(run.run)
            return
        if producer.fallback:
            return  # its siblings claim too; one event is enough
        message = f"{producer.label} claims to be primary; {run.primary_label} is, and has not ended"
        self._context.emit_event(  # safeguard: refused-claim-is-row
            producer, seq, ts, "primary_refused", "warning", message, {"holder": run.primary_label}
        )

    def _can_take_primary(self, run: Run, producer: Producer) -> bool:
        assert run.primary_label is not None
        holders = self._state.by_label.get((run.run, run.primary_label), [])
        if any(_names(holder, producer) for holder in holders):  # safeguard: late-launcher-not-primary
            return False
        if not producer.fallback and holders and all(holder.fallback for holder in holders):
            return True
        if producer.launch == run.primary_launch:
            return producer.restart > run.primary_restart  # safeguard: higher-restart-is-primary
        return all(holder.state is not None for holder in holders)  # safeguard: primary-kept-until-end

    def _clear_primary(self, run: Run, *, shares: bool) -> None:
        """Revoke the role of primary from a label. shares: its config and files of the run remain the run's."""
        assert run.primary_label is not None
        for holder in self._state.by_label.get((run.run, run.primary_label), []):
            holder.is_coauthor |= shares and holder.is_primary
            holder.is_primary = False
            self._context.batch.producers.add(holder.producer)

    def _share(self, producer: Producer) -> None:
        """Let a producer write config and files of the run in addition to the primary."""
        if not producer.is_coauthor:
            producer.is_coauthor = True
            self._context.batch.producers.add(producer.producer)

    def _is_shared(self, run: Run, producer: Producer) -> bool:
        """Return True if this label, or its parent's, shared the run before: a notebook that trains again."""
        labels = (producer.label, producer.parent)
        mates = [mate for label in labels for mate in self._state.by_label.get((run.run, label or ""), [])]
        return any(mate.is_coauthor for mate in mates)

    def _holders(self, run: Run) -> list[Producer]:
        """Return the incarnations of the run's primary, oldest first."""
        mates = self._state.by_label.get((run.run, run.primary_label or ""), [])
        return [mate for mate in mates if mate.is_primary]

    def _emit_primary_moved(self, producer: Producer, holders: list[Producer], seq: int, ts: int) -> None:
        """Add a row when the primary moves from a node that the key of the new primary does not cover.

        An elastic restart that moves rank 0 to another node looks the same as an agent that usurps another's run. The
        index allows it, and the row shows it. Producers of unrestricted senders have no `nodes`.
        """
        foreign = [
            h
            for h in holders
            if h.nodes and h.key_node is not None and not matches_node(tuple(producer.nodes), h.key_node)
        ]
        if not foreign or not producer.nodes:  # safeguard: foreign-primary-leaves-row
            return
        before = foreign[-1]
        message = (
            f"{producer.label} of {producer.node or 'an unknown node'} is now the primary; it was {before.label} of "
            f"{before.node}, for which the new one's key does not speak; if the run did not move, revoke that key"
        )
        body = {
            "from": before.node,
            "to": producer.node,
            "had_ended": before.state is not None,
            "nodes": producer.nodes,
            "producer": producer.uuid.hex(),
        }
        self._context.emit_event(producer, seq, ts, "primary_moved", "warning", message, body)

    def _beside_parent(self, run: Run, producer: Producer, said: dict[str, Any]) -> dict[str, Any]:
        """Return what a rank may add to a run that its parent describes: fields that the parent left out, and tags."""
        parents = self._state.by_label.get((run.run, producer.parent or ""), [])
        if not any(parent.is_coauthor for parent in parents):
            return said
        kept = {name: said[name] for name, column in RUN_COLUMNS.items() if name in said and not getattr(run, column)}
        return kept | {"tags": [*run.tags, *(tag for tag in said.get("tags", []) if tag not in run.tags)]}

    def _describe(self, run: Run, said: dict[str, Any]) -> None:
        for name, column in RUN_COLUMNS.items():
            if name in said and column not in run.edited:  # safeguard: edited-field-stays
                value = said[name]
                if getattr(run, column) != value:
                    setattr(run, column, value)
                    self._context.batch.runs.add(run.run)

    def config(self, producer: Producer, seq: int, ts: int, values: Any) -> None:
        """Store a config as sent; the view shows the primary's.

        A config of another label is refused if there is a primary.
        """
        if (primary := self._primary_beside(producer)) is not None:
            message = f"config of {producer.label} is refused: {primary} is the primary"
            self._context.emit_event(producer, seq, ts, "config_refused", "warning", message, {"keys": sorted(values)})
        for key, value in values.items():
            self._context.batch.add("config", (producer.producer, seq, ts, text_of(key), json_of(value)))

    def _primary_beside(self, producer: Producer) -> str | None:
        """Return the primary if this producer is not it and a refusal must be reported, else None."""
        run = self._state.runs_by_number.get(producer.run or 0)
        is_allowed = producer.is_primary or producer.is_coauthor or producer.fallback
        return None if run is None or is_allowed else run.primary_label

    def file(self, producer: Producer, seq: int, ts: int, path: Any, n_bytes: Any, digest: Any) -> None:
        """Store a saved file as reported; the view shows the primary's, and those of any label below `mlflow/`.

        Any other one of another label is refused if there is a primary.
        """
        path = text_of(path)
        if (objection := invalid_path_reason(path)) is not None:
            raise ValueError(f"path {path!r:.80}: {objection}")
        is_of_primary = not path.startswith(ANY_LABEL_FOLDER)
        if is_of_primary and (primary := self._primary_beside(producer)) is not None:
            message = f"file {path!r:.200} of {producer.label} is refused: {primary} is the primary"
            self._context.emit_event(producer, seq, ts, "file_refused", "warning", message, {"path": path})
        self._context.batch.add("files", (producer.producer, seq, ts, path, count_of(n_bytes), digest_of(digest)))

    def ended(self, producer: Producer, seq: int, ts: int, body: Any, *, by_itself: bool) -> None:
        """Note how a producer ended. Its own report has priority over its agent's, in whichever order they arrive."""
        said, _ = plain_fields(select_typed(body, _STATE_FIELDS))
        detail = select_typed(body, {"detail": dict}).get("detail", {})
        state = said.get("state")
        if state not in STATES:
            raise ValueError(f"state {state!r} must be one of {', '.join(STATES)}")
        if "produced" in said and 0 <= said["produced"] < SEQ_END:
            producer.produced = max(said["produced"], producer.produced or 0)
        if by_itself:
            producer.produced = max(seq + 1, producer.produced or 0)
        self._context.batch.producers.add(producer.producer)
        self._note_end(producer, ts, said, detail, by_itself=by_itself, seq=seq)
        self._ledger.declare_missing(producer)

    def _note_end(
        self, producer: Producer, ts: int, said: dict[str, Any], detail: dict[str, Any], *, by_itself: bool, seq: int
    ) -> None:
        state = said["state"]
        if not by_itself and producer.state in ("finished", "failed"):
            return
        exit_code, exit_signal = int32_of(said.get("exit_code")), int32_of(said.get("exit_signal"))
        if (producer.state, producer.reason) == (state, said.get("reason")):  # every sync of a journal repeats it
            producer.exit_code = producer.exit_code if exit_code is None else exit_code
            producer.exit_signal = producer.exit_signal if exit_signal is None else exit_signal
            return
        producer.state, producer.reason = state, said.get("reason")
        producer.exit_code, producer.exit_signal = exit_code, exit_signal
        producer.cause = _cause_of(said)
        producer.ended_at, producer.is_presumed = ts, False
        producer.late_us = min(max(0, said.get("late_us", 0)), LATE_US_MAX)
        if state != "finished" and producer.role == CONSOLE:
            # The label continues: an event of kind `crashed` would look like its end.
            message = f"the helper that recorded the console {state}: {producer.reason or 'no reason given'}"
            self._context.emit_event(producer, seq, ts, "console_helper", "warning", message, {})
        elif state != "finished":
            outcome = f"{state}: {producer.reason or 'no reason given'}"
            message = f"{producer.label or 'a producer'} {outcome}"
            body, is_early = detail_of(detail), producer.label is None
            self._context.emit_event(
                producer, seq, ts, state, "error", message, body, outcome=outcome if is_early else None
            )
        self._labels.check_run_end(producer, seq, ts)


def _cause_of(said: dict[str, Any]) -> str | None:
    """Return the cause of an end: its writer's code, or derived from the reason of an older writer."""
    if said["state"] in ("finished", "running"):
        return None
    has_status = said["state"] == "failed" or "exit_code" in said or "exit_signal" in said
    # safeguard: old-exit-cause-from-reason
    return end_cause(said.get("cause")) or cause_of_old_reason(said.get("reason", ""), has_status=has_status)


def _is_parent(holder: Producer, child: Producer) -> bool:
    """Return True if a process that is not a rank started another one or its launcher, as that one reports.

    Both are on one node.
    """
    return _names(child, holder) and child.node == holder.node


def _names(child: Producer, holder: Producer) -> bool:
    """Return True if a process names another one, which is not a rank, as its parent."""
    return child.parent is not None and child.parent == holder.label and holder.rank is None


def may_act_for(nodes: list[str], mate: Producer) -> bool:
    """Return True if a report under a key for these nodes may move a producer. No nodes: the key was not restricted."""
    if not nodes:  # safeguard: foreign-nodes-merge-nothing
        return True
    return mate.nodes == nodes if mate.key_node is None else matches_node(tuple(nodes), mate.key_node)


def int32_of(value: int | None) -> int | None:
    """Return the integer if it fits 32 bits, else None."""
    return value if value is not None and -(1 << 31) <= value < 1 << 31 else None


def plain_fields(said: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Convert decoded values for DuckDB: texts cleaned and limited, lists as texts, integers of 64 bits.

    Return them with the names of the fields that were cut.
    """
    kept: dict[str, Any] = {}
    cut = []
    for name, value in said.items():
        if isinstance(value, str):
            text = clean(value)
            kept[name] = text[: _CHARS_MAX.get(name, NAME_CHARS_MAX)]  # safeguard: identity-bounded
            if kept[name] != text:
                cut.append(name)
        elif isinstance(value, list):
            texts = [clean(str(entry)) for entry in value[:_ENTRIES_MAX]]
            kept[name] = [text[:NAME_CHARS_MAX] for text in texts]
            if kept[name] != texts or len(value) > len(texts):
                cut.append(name)
        elif isinstance(value, bool) or -(1 << 63) <= value < 1 << 63:
            kept[name] = value
    return kept, cut
