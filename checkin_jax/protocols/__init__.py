"""Check-in protocols as frozen public descriptions.

A protocol has public parameters only: the number of clients, the law of their check-ins, the length of the run. The
identities of clients that checked in are sensitive, and never a field.

`num_units` is the number of units (a unit is a round, or a whole window). Inputs and randomizers may depend on
the outputs of earlier units; the fields of a protocol may not. `assumptions` are necessary: guarantees fail without
them. `observed` describes an adversary and `compared` the neighboring data sets, for statements, pages, audits and
JSON.
"""

from checkin_jax.protocols.protocol import ADD_OR_REMOVE as ADD_OR_REMOVE
from checkin_jax.protocols.protocol import EMPTY_SLOTS as EMPTY_SLOTS
from checkin_jax.protocols.protocol import MAX_CLIENTS as MAX_CLIENTS
from checkin_jax.protocols.protocol import MAX_ROUNDS as MAX_ROUNDS
from checkin_jax.protocols.protocol import RELATIONS as RELATIONS
from checkin_jax.protocols.protocol import REPLACE as REPLACE
from checkin_jax.protocols.protocol import VIEWS as VIEWS
from checkin_jax.protocols.protocol import CheckInProtocol as CheckInProtocol
from checkin_jax.protocols.protocol import Cover as Cover
from checkin_jax.protocols.protocol import KnownSlots as KnownSlots
from checkin_jax.protocols.protocol import SlotChoices as SlotChoices
from checkin_jax.protocols.protocol import Slots as Slots
from checkin_jax.protocols.protocol import UnequalCover as UnequalCover
from checkin_jax.protocols.protocol import UnequalSlotChoices as UnequalSlotChoices
from checkin_jax.protocols.protocol import Words as Words
from checkin_jax.protocols.protocol import highest as highest
from checkin_jax.protocols.rounds import AvailableCheckIn as AvailableCheckIn
from checkin_jax.protocols.rounds import Shuffle as Shuffle
from checkin_jax.protocols.rounds import ShuffledCheckIn as ShuffledCheckIn
from checkin_jax.protocols.rounds import from_availability as from_availability
from checkin_jax.protocols.windows import AveragedUpdates as AveragedUpdates
from checkin_jax.protocols.windows import FixedWindow as FixedWindow
from checkin_jax.protocols.windows import SlidingWindow as SlidingWindow

PROTOCOLS = (ShuffledCheckIn, Shuffle, FixedWindow, SlidingWindow, AveragedUpdates)
