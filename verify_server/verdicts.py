"""What a step's predictions mean: accepted nodes, emitted tokens, ended sessions, next budgets.

Greedy verification (Leviathan et al., arXiv:2211.17192, at temperature 0; trees as in SpecInfer,
arXiv:2305.09781). Knows nothing of what comes in next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.engine.interface import RowsOut, TargetEngine
from forerun.engine.interface import Sequence as Cache
from forerun.errors import ForerunError, Internal
from forerun.stats import SessionStats
from forerun.tree import Budget, Tree, verify_greedy
from verify_server import budget, sizing
from verify_server.config import VerifyConfig
from verify_server.costs import StepCosts
from verify_server.events import Hidden, KvState, Opened, Outcome, StreamOutput, Timing, Verdict
from verify_server.ledger import Ledger
from verify_server.metrics import Metrics
from verify_server.residency import Residency
from verify_server.sessions import Phase, Session
from verify_server.step import Step
from verify_server.stops import FinishReason

NO_NUMBERS = (
    "no logit of the target is a number; its weights are damaged, or overflow in --dtype bfloat16"
)


@dataclass(slots=True)
class _Ruling:
    """What one session gets out of a step: `emitted` of `block`, and why it ends, if it does."""

    session: Session
    tree: Tree | None
    accepted: list[int]
    block: list[int]
    emitted: int
    reason: FinishReason | None
    hidden: Hidden | None


@dataclass(slots=True)
class _Moment:
    """What all rulings of one step share: its number, beginning and end, how long the engine had
    stood idle for each of its drafts, how many sessions decode next and what their roots weigh, how
    many share the engine, prompts that are under way included, and what is counted of all of them;
    told: what its rounds seem to be worth, in tokens."""

    number: int
    began_ns: int
    now_ns: int
    idle_ns: float
    decoding: int
    plain_rows: float
    sharing: int
    counts: SessionStats
    told: float = 0.0


class Judge:
    """Applies the outcome of a forward to its sessions and to the cache."""

    def __init__(
        self,
        engine: TargetEngine,
        config: VerifyConfig,
        residency: Residency,
        costs: StepCosts,
        metrics: Metrics,
    ) -> None:
        self._engine = engine
        self._config = config
        self._patience_ns = int(config.patience_ms * 1e6)
        self._residency = residency
        self._costs = costs
        self._metrics = metrics
        self._steps = 0
        self._usual = budget.Usual()
        self._ledger = Ledger()

    def settle(
        self,
        step: Step,
        outs: Sequence[RowsOut],
        began_ns: int,
        idle_ns: int,
        clock_ns: Callable[[], int],
        stream: Callable[[int], StreamOutput],
    ) -> list[tuple[Session, FinishReason | ForerunError]]:
        """Commits what stays and writes the step's openings, verdicts and hidden states. idle_ns:
        how long the engine had nothing to do before the step.

        Returns the sessions that ended, or failed, and why; the caller drops them.
        """
        decoded = self._residency.decoding
        asked = [session for session in decoded if session.granted.nodes]
        rulings: list[_Ruling] = []
        failed: list[Session] = []
        kept: list[tuple[Cache, Sequence[int] | int]] = []
        for session, rows, tree, out in zip(
            step.sessions, step.rows, step.trees, outs, strict=True
        ):
            assert session.sequence is not None
            ruled = (
                _rule_prompt(session, len(rows.token_ids), out)
                if tree is None
                else _rule_round(session, tree, out)
            )
            if ruled is None:
                failed.append(session)
                continue
            ruling, stays = ruled
            rulings.append(ruling)
            kept.append((session.sequence, stays))
        self._engine.commit(kept)
        for ruling in rulings:
            self._keep_for_others(ruling)
        self._move_on(rulings)
        ended: list[tuple[Session, FinishReason | ForerunError]] = [
            (ruling.session, ruling.reason) for ruling in rulings if ruling.reason is not None
        ]
        ended += [(session, Internal(NO_NUMBERS)) for session in failed]
        now_ns = clock_ns()
        lean = step.count(prefill=True) == 0
        plain_ns = self._costs.decode_ns(
            self._costs.plain_rows(len(session.committed) for session in decoded)
        )
        self._costs.record(step.weighed_rows, now_ns - began_ns, lean=lean)
        over = {session.key for session, _ in ended}
        decoding = [s for s in self._residency.decoding if s.key not in over]
        plain_rows = self._costs.plain_rows(len(session.committed) for session in decoding)
        self._steps += 1
        self._usual.forget()
        drafted = sum(s.tree is not None and s.tree.num_nodes > 0 for s in step.sessions)
        moment = _Moment(
            self._steps,
            began_ns,
            now_ns,
            idle_ns / max(drafted, 1),
            len(decoding),
            plain_rows,
            max(sum(session.key not in over for session in self._residency.residents), 1),
            SessionStats(),
        )
        for ruling in rulings:
            output = stream(ruling.session.stream)
            if ruling.tree is None:
                self._write_prompt(ruling, moment, output)
            else:
                self._write_verdict(ruling, ruling.tree, moment, output)
        if lean and self._costs.fitted and plain_ns > 0:
            self._ledger.record(
                sessions=len(decoded),
                asked=len(asked),
                hidden_states=2 * sum(bool(session.taps) for session in asked) > len(asked),
                tokens=moment.counts.emitted,
                ns=now_ns - began_ns + idle_ns,
                plain_ns=plain_ns,
                told=moment.told,
            )
        self._metrics.record_counts(moment.counts)
        self._metrics.record_step(
            (moment.now_ns - began_ns) / 1e9,
            decode_rows=step.count(prefill=False),
            prefill_rows=step.count(prefill=True),
        )
        return ended

    def _keep_for_others(self, ruling: _Ruling) -> None:
        """Shares the pages that are full of committed tokens; frees those of an ended session."""
        session = ruling.session
        assert session.sequence is not None
        self._engine.share(session.sequence, session.committed)
        if ruling.reason is not None:
            self._engine.release(session.sequence)

    def _move_on(self, rulings: list[_Ruling]) -> None:
        """Sessions whose committed tokens are cached go on to decoding."""
        for ruling in rulings:
            session = ruling.session
            if session.phase is not Phase.PREFILLING or ruling.reason is not None:
                continue
            assert session.sequence is not None
            if session.sequence.length == session.prefill_len:
                session.phase = Phase.DECODING
            else:
                self._residency.keep_reserved(session)

    def _write_prompt(self, ruling: _Ruling, moment: _Moment, output: StreamOutput) -> None:
        session = ruling.session
        if ruling.hidden is not None:
            output.hidden.append(ruling.hidden)
        if ruling.emitted:
            session.stats.emitted += 1
            moment.counts.emitted += 1
            granted = self._begin_round(ruling, moment)
            output.opened.append(
                Opened(
                    session=session.number,
                    first_token_id=ruling.block[0],
                    kv=self._kv(session, ruling.reason),
                    budget=granted,
                    timing=_timing(session.received_ns, moment),
                )
            )
        elif session.phase is Phase.DECODING:
            session.due_ns = moment.now_ns  # it has come back, and goes on plainly

    def _write_verdict(
        self, ruling: _Ruling, tree: Tree, moment: _Moment, output: StreamOutput
    ) -> None:
        session, accepted = ruling.session, len(ruling.accepted)
        round_number, timing = session.round, _timing(session.ready_ns, moment)
        plain = session.tree is None or session.tree.num_nodes == 0
        self._metrics.record_queue(timing.queue_ns / 1e9)
        session.stats.record_round(tree, accepted, ruling.emitted)
        moment.counts.record_round(tree, accepted, ruling.emitted)
        if tree.num_nodes:
            self._metrics.record_bonus(ruling.emitted - accepted)
        if session.granted.nodes == 0:
            session.pace.record_plain_step()
        elif not plain:
            worth = self._worth(session, tree, accepted, moment)
            adaptive = self._config.adaptive
            session.pace.record_round(
                accepted,
                tree.max_depth,
                worth,
                sessions=moment.sharing,
                pausing=adaptive,
            )
        elif session.tree is None or session.waited_ns > max(timing.verify_ns, self._patience_ns):
            session.pace.record_silence()
        elif self._config.adaptive:
            answer = session.waited_ns / max(timing.verify_ns, 1)
            session.pace.record_nothing(answer, min(self._untold(session, moment), 0.0))
        granted = self._begin_round(ruling, moment)
        output.verdicts.append(
            Verdict(
                session=session.number,
                round=round_number,
                accepted_nodes=ruling.accepted,
                token_ids=ruling.block[:accepted],
                bonus_token_id=ruling.block[-1] if ruling.emitted > accepted else None,
                kv=self._kv(session, ruling.reason),
                budget=granted,
                timing=timing,
                plain=plain,
                verified_nodes=tree.num_nodes,
                hidden=ruling.hidden,
            )
        )

    def _worth(self, session: Session, tree: Tree, accepted: int, moment: _Moment) -> float:
        if not self._costs.fitted:
            return budget.FIRST_GAIN
        sessions = max(moment.decoding, 1)
        worth = sizing.worth(
            self._costs,
            accepted=accepted,
            rows=tree.num_nodes * self._costs.row_weight(len(session.committed)),
            waited_ns=min(moment.idle_ns, session.waited_ns),
            plain_rows=moment.plain_rows,
            sessions=sessions,
        )
        moment.told += worth
        worth += self._untold(session, moment)
        self._usual.record(worth, sessions=moment.sharing, hidden_states=bool(session.taps))
        return worth

    def _untold(self, session: Session, moment: _Moment) -> float:
        return self._ledger.untold(
            sessions=max(moment.decoding, 1), hidden_states=bool(session.taps)
        )

    def _begin_round(self, ruling: _Ruling, moment: _Moment) -> Budget:
        session = ruling.session
        if ruling.reason is not None:
            return budget.NONE
        node = ruling.accepted[-1] if ruling.accepted else 0
        session.last_outcome = Outcome(session.round, node, session.committed[-1])
        session.begin_round(self._grant(session, moment), moment.now_ns)
        if session.drafting:
            self._metrics.record_grant(session.granted.nodes)
        return session.granted

    def _asks(self, session: Session, moment: _Moment) -> bool:
        """Whether sessions like this one are asked for trees at this moment."""
        return not self._ledger.wants_plain(moment.number, moment.decoding) and self._usual.pays(
            sessions=moment.sharing, hidden_states=bool(session.taps)
        )

    def _grant(self, session: Session, moment: _Moment) -> Budget:
        if not session.drafting:
            return budget.NONE
        if self._config.adaptive and not self._asks(session, moment):
            return budget.NONE
        most = self._config.draft_limit
        if self._config.adaptive and self._costs.fitted:
            nodes = sizing.paying_nodes(
                self._costs,
                rate=session.pace.rate,
                plain_rows=moment.plain_rows,
                most=most.nodes,
                limit=sizing.decoding_limit_ns(self._config.step_ms),
            )
            most = Budget(nodes, most.depth)
        return budget.grant(
            session.pace.limit(most, moment.number, sessions=moment.sharing),
            row_budget=self._config.row_budget,
            sessions=moment.sharing,
            remaining=session.rule.remaining(session.emitted, len(session.committed)),
            room=session.room,
        )

    def _kv(self, session: Session, reason: FinishReason | None) -> KvState:
        assert session.sequence is not None
        held = reason is None
        return KvState(
            committed_len=len(session.committed),
            cached_len=session.sequence.length if held else 0,
            pages_held=len(session.sequence.pages) if held else 0,
            pages_free=self._engine.pages_free,
            pages_cached=self._engine.pages_cached,
        )


def _timing(since_ns: int, moment: _Moment) -> Timing:
    queue_ns, verify_ns = moment.began_ns - since_ns, moment.now_ns - moment.began_ns
    return Timing(max(0, queue_ns), verify_ns, moment.began_ns)


def _rule_prompt(session: Session, count: int, out: RowsOut) -> tuple[_Ruling, int] | None:
    """None where the target has no next token, as for `_rule_round`."""
    assert session.sequence is not None
    block = [int(token_id) for token_id in out.predictions]
    if block and block[-1] < 0:
        return None
    hidden = None
    if out.hidden is not None:
        # Sent before, when the session was in the pool the first time.
        known = max(0, session.prompt_hidden_sent - session.sequence.length)
        hidden = _hidden(session, session.sequence.length + known, out.hidden[known:])
        session.prompt_hidden_sent = session.sequence.length + count
    emitted, reason = session.emit(block) if block else (0, None)
    return _Ruling(session, None, [], block, emitted, reason, hidden), count


def _rule_round(session: Session, tree: Tree, out: RowsOut) -> tuple[_Ruling, list[int]] | None:
    """None where the target has no next token. On nodes that are not accepted that is nothing."""
    accepted, bonus = verify_greedy(tree, out.predictions.tolist())
    if bonus < 0:
        return None
    root_position = len(session.committed) - 1
    block = [*(tree.token_ids[node] for node in accepted), bonus]
    emitted, reason = session.emit(block)
    accepted = accepted[:emitted]
    stays = [0, *accepted]
    hidden = None
    if out.hidden is not None:
        hidden = _hidden(session, root_position, out.hidden[stays])
    return _Ruling(session, tree, accepted, block, emitted, reason, hidden), stays


def _hidden(session: Session, first_position: int, rows: NDArray[np.uint16]) -> Hidden:
    data = np.ascontiguousarray(rows, dtype="<u2").tobytes()
    return Hidden(session.number, first_position, len(rows), data)
