"""How long things take in Mooncake's control plane, in seconds."""

from __future__ import annotations

from typing import Final

HEARTBEAT_S: Final = 1.0
"""Between two heartbeats of one process."""
HEARTBEAT_TIMEOUT_S: Final = 30.0
"""From the last heartbeat until a process counts as gone."""
REGISTRATION_TIMEOUT_S: Final = 30.0
"""How long a process tries to register under its rank."""
CREATION_TIMEOUT_S: Final = 300.0
"""How long a group waits for its founding members."""
JOIN_TIMEOUT_S: Final = 300.0
"""How long `join_group` waits to be admitted."""
ADMISSION_TIMEOUT_S: Final = 20.0
"""How long a proposal waits until it can be admitted."""
ACK_TIMEOUT_S: Final = 20.0
"""How long a change of members waits for those who do not confirm it."""
COLLECTIVE_TIMEOUT_S: Final = 10.0
"""How often a collective that waits asks whether its peers still live, unless it is set."""
P2P_TIMEOUT_S: Final = 10.0
"""How long a message waits for its other end, unless it is set."""
WINDOW_S: Final = 30.0
"""From the first report of a failure until the coordinator decides, unless it is set."""
