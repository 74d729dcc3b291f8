"""Record of calls to the cloud, of allowed and denied actions, and of unimplemented calls."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Denial:
    """An action that the caller's policies do not allow."""

    principal: str
    action: str
    resource: str
    reason: str


class CallLog:
    """Counts of calls per principal and operation, denials, rights, and unimplemented calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._denials: deque[Denial] = deque(maxlen=1000)
        self._unimplemented: Counter[str] = Counter()
        self._rights: dict[str, dict[str, set[str]]] = {}

    def record_call(self, principal: str, action: str) -> None:
        """Count a call."""
        with self._lock:
            self._calls[principal, action] += 1

    def record_denial(self, denial: Denial) -> None:
        """Record a denial; the log keeps the last 1000."""
        with self._lock:
            self._denials.append(denial)

    def record_right(self, role: str, action: str, resource: str) -> None:
        """Record that IAM allowed a role an action on a resource."""
        with self._lock:
            self._rights.setdefault(role, {}).setdefault(action, set()).add(resource)

    def rights(self) -> dict[str, dict[str, list[str]]]:
        """Return the resources that IAM allowed, by the role's ARN, then by action."""
        with self._lock:
            return {
                role: {action: sorted(used) for action, used in sorted(actions.items())}
                for role, actions in sorted(self._rights.items())
            }

    def record_unimplemented(self, action: str) -> None:
        """Count a call that the cloud does not implement."""
        with self._lock:
            self._unimplemented[action] += 1

    def clear(self) -> None:
        """Reset all counts, denials and recorded rights."""
        with self._lock:
            self._calls.clear()
            self._denials.clear()
            self._unimplemented.clear()
            self._rights.clear()

    def calls(self) -> dict[str, dict[str, int]]:
        """Return the number of calls by principal, then by `service:Operation`."""
        with self._lock:
            counts: dict[str, dict[str, int]] = {}
            for (principal, action), count in sorted(self._calls.items()):
                counts.setdefault(principal, {})[action] = count
            return counts

    def denials(self) -> list[dict[str, Any]]:
        """Return the denials, oldest first, at most the last 1000."""
        with self._lock:
            return [asdict(denial) for denial in self._denials]

    def missing_calls(self) -> dict[str, int]:
        """Return the number of calls that the cloud does not implement, by `service:Operation`."""
        with self._lock:
            return dict(sorted(self._unimplemented.items()))
