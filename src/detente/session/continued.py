"""The request of a session that is continued: read from the session, so that ``--resume`` needs nothing retyped."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from detente.records.codec import SchemaError, from_json
from detente.records.fault import StoreFault
from detente.records.session import Session
from detente.session.request import Request


def request_of(session: Session) -> Request:
    """What ``session`` was asked for. Raises StoreFault for a session whose settings this version does not know."""
    settings: dict[str, Any] = dict(session.fingerprint.settings)
    # In the settings this name holds the costs of the workloads; which they are stands in the cells.
    settings["workloads"] = list(dict.fromkeys(c.workload for c in session.planned))
    known = {f.name for f in fields(Request)}
    try:
        return from_json(Request, {k: v for k, v in settings.items() if k in known})
    except SchemaError as error:
        raise StoreFault(
            f"the settings of session {session.id} cannot be read: {error}",
            f"name what to compare: detente compare WORKLOAD --resume {session.id}",
        ) from error
