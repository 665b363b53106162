"""Who holds pages: a queue of those who wait, and who gives way when the pool runs dry.

Knows sessions and page counts, not rounds. The pool never deadlocks: a session fits into the whole
pool alone (see Admission.max_context), and only younger sessions give way, so the oldest always
gets what it needs.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Container

from forerun.engine.interface import TargetEngine
from verify_server.sessions import Phase, Session


class Residency:
    """Sessions that wait for pages, in order of arrival, and those that hold some, in order of
    turns: who had one last stands at the end."""

    def __init__(
        self,
        engine: TargetEngine,
        tree_rows: int,
        on_evict: Callable[[Session], None],
        on_reuse: Callable[[int], None],
    ) -> None:
        """tree_rows: slots beside the prompt that a session needs to be let in. on_reuse: called
        with the tokens whose KV a session that was let in took from the prefix cache."""
        self._engine = engine
        self._tree_rows = tree_rows
        self._on_evict = on_evict
        self._on_reuse = on_reuse
        self.waiting: list[Session] = []
        self.residents: list[Session] = []

    @property
    def decoding(self) -> list[Session]:
        """Residents whose prompt is cached, in order of turns."""
        return [session for session in self.residents if session.phase is Phase.DECODING]

    def enter(self, session: Session) -> None:
        """Queues a new session, and lets in who fits."""
        self.waiting.append(session)
        self.admit()

    def admit(self) -> None:
        """Lets sessions in, first come first served, while their prompt and one tree fit."""
        while self.waiting:
            session = self.waiting[0]
            sequence = self._engine.open()
            # First, lest the room is made by giving up the very pages that would be taken.
            reused = self._engine.reuse(sequence, session.committed[: session.reusable_len])
            if not self._engine.reserve(sequence, self._slots(session)):
                self._engine.release(sequence)
                return
            del self.waiting[0]
            session.sequence = sequence
            session.phase = Phase.PREFILLING
            self.residents.append(session)
            if reused:
                self._on_reuse(reused)

    def reuse(self, session: Session) -> None:
        """Takes what others have computed of a prompt since its session was let in."""
        assert session.sequence is not None
        tokens = session.committed[: session.reusable_len]
        if reused := self._engine.reuse(session.sequence, tokens):
            self._on_reuse(reused)

    def keep_reserved(self, session: Session) -> None:
        """Takes back the pages of a prompt's rest, which the commit of its first rows freed."""
        assert session.sequence is not None
        if not self._engine.reserve(session.sequence, self._slots(session)):
            raise RuntimeError("the pool lost pages between a commit and the next reservation")

    def hold(self, session: Session, slots: int) -> bool:
        """Holds `slots` slots for a session if they are free."""
        assert session.sequence is not None
        return self._engine.reserve(session.sequence, slots)

    def make_room(self, session: Session, slots: int, placed: Container[Session]) -> bool:
        """Holds `slots` slots for a session, if need be at the cost of younger ones.

        `placed` sessions are part of the coming step and keep their pages; where only they could
        give way, the session has to wait for the next step. Where it is itself the youngest, it
        gives way. Returns whether the slots are held.
        """
        while not self.hold(session, slots):
            younger = [other for other in self.residents if other.arrival > session.arrival]
            movable = [other for other in younger if other not in placed]
            if movable:
                self._evict(max(movable, key=_arrival))
                continue
            if not younger:
                self._evict(session)
            return False
        return True

    def to_back(self, session: Session) -> None:
        """The session takes its turn; the next one comes after the others'."""
        self.residents.remove(session)
        self.residents.append(session)

    def leave(self, session: Session) -> None:
        """Drops a session that is over."""
        if session.sequence is None:
            self.waiting.remove(session)
            return
        self.residents.remove(session)
        self._engine.release(session.sequence)
        session.sequence = None

    def _evict(self, session: Session) -> None:
        assert session.sequence is not None
        self.residents.remove(session)
        self._engine.release(session.sequence)
        self._on_evict(session)
        insort(self.waiting, session, key=_arrival)

    def _slots(self, session: Session) -> int:
        return min(session.prefill_len + self._tree_rows, session.rule.max_committed)


def _arrival(session: Session) -> int:
    return session.arrival
