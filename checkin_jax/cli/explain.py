"""`checkin explain`: a word or the name of a bound, in two plain sentences."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tyro

from checkin_jax._names import did_you_mean
from checkin_jax.cli.options import Job, UsageError
from checkin_jax.cli.pages import say

# docs/glossary.md has the same sentences.
WORDS = {
    "epsilon": "How much one client's data can change what anybody concludes: no odds change by more than the factor "
    "e^epsilon. At 0.1 that is about 11%, at 1 a factor of 2.7, and at 10 a factor of 22,000, which protects nobody "
    "in practice.",
    "delta": "A probability that the promise of epsilon leaves out: what is concluded becomes at most e^epsilon times "
    "as likely, plus delta. It should be far below one over the number of clients: a larger one would permit "
    "publishing somebody's data.",
    "epsilon0": "The epsilon of one message by itself, as its receiver sees it with the sender's name on it. What "
    "hides a client among others makes the epsilon of the whole run smaller, what is repeated makes it larger.",
    "client": "One device or person that takes part, with all the data it holds. The guarantee protects this whole: "
    "a record means everything that one client holds, not one photograph or sentence of it.",
    "adjacency": "Which two data sets have to look nearly alike. Under replace-one, one client holds other data; under "
    "add-or-remove-one it is there or not; epsilons of the two must not be compared with each other.",
    "message": "What a client sends in one round: its update, after its randomizer has been applied. Nothing else of "
    "its data may leave the device.",
    "randomizer": "What a client applies to its update before sending it, so that the message could nearly as well "
    "come from other data. Gaussian noise is one, a coin that sometimes flips the answer another.",
    "clip norm": "The length to which each client's update is cut before noise is added. It limits how far one client "
    "can move the result, and so how much noise is needed.",
    "noise multiplier": "The standard deviation of a client's Gaussian noise, divided by the clip norm. Twice as much "
    "noise halves the mu of a message.",
    "check-in": "The client's decision to take part in a round, by a coin of its own that does not depend on its data. "
    "Nobody else may learn who has checked in; that hides each client among all.",
    "drop-out": "A client that has checked in and sends nothing after all, because its battery is empty or its network "
    "is gone. It must not depend on the client's data; only messages that arrive hide one another.",
    "availability": "Whether a client could take part at all in a round, for instance because it is charging. It may "
    "be known, and is no coin: of the available ones each still has to check in by chance.",
    "slot": "One of several places in time of which a client picks one at random for its message. The places from "
    "which it picks are its window.",
    "dummy": "The message that the server makes up for a slot that nobody picked. It is drawn by the same randomizer, "
    "so that nobody sees that the slot was empty.",
    "shuffler": "A service that passes on messages in random order and without names. It must not work together with "
    "whoever reads the messages.",
    "secure aggregation": "A protocol by which a server learns the sum of the clients' messages and no single one of "
    "them. It is what the view aggregate assumes.",
    "view": "What the adversary sees: local is one client's messages with its name, messages is all of them without "
    "names, aggregate is their sums. Choose the one that describes whom you do not trust.",
    "colluding client": "A client that tells the adversary what it has sent, or that the adversary has made up. Its "
    "message hides nobody, so that only the honest clients count.",
    "composition": "Working out what several rounds leak together. Ten rounds of epsilon 0.1 and delta 1e-8 are within "
    "epsilon 1 at delta 1e-7, and the accountant finds how much less it is.",
    "bracket": "A proven upper end and a proven lower end of epsilon. The upper end is the guarantee; the lower end "
    "says how much a better proof could still gain.",
    "certified": "Said of a number that is proven to lie on the safe side of the truth, rounding errors included. "
    "Published is a formula of a paper as printed, an estimate is neither, and invalid is known to be no bound.",
    "mu": "How hard an attack is, by comparison: as hard as telling a standard normal number from one whose mean is "
    "mu. Gaussian differential privacy is the name of this scale.",
    "advantage": "True positives minus false positives of the best attack that guesses whether a client's data is one "
    "record or another. 0 is guessing blindly, 1 is always being right.",
    "RDP": "Renyi differential privacy: a way to add up what rounds leak by the mean of a power of the likelihood "
    "ratio. It is quick and simple, and the epsilon that it gives is somewhat larger than by PLD.",
    "PLD": "Privacy loss distribution: the law of the logarithm of the odds that an adversary sees. Adding such random "
    "numbers up over all rounds gives epsilon without the loss that simpler rules have.",
}


@dataclasses.dataclass(kw_only=True)
class Explain:
    """Explains a word (epsilon, view, RDP) or the name of a bound in a statement (T1+)."""

    heading: ClassVar[str] = "arguments"
    examples: ClassVar[tuple[str, ...]] = ("epsilon", '"secure aggregation"', "T1+")

    term: tyro.conf.Positional[str]
    """The word; without one that is known, all of them are listed."""

    def prepare(self) -> Job:
        """Finds the word; the job prints it."""
        from checkin_jax.accounting.bounds.table import BOUNDS

        bounds = {bound.label: f"{bound.statement}. Proof: {bound.reference}." for bound in BOUNDS}
        known = {**WORDS, **bounds}
        plain = self.term.strip().replace("_", " ").lower()
        found = {name: text for name, text in known.items() if name.lower() == plain}
        if not found:
            words = ", ".join(WORDS)
            hint = did_you_mean(self.term, known)
            raise UsageError(f"no word {self.term}: expected the name of a bound or one of {words}{hint}")
        return lambda: say(*(f"{name}: {text}" for name, text in found.items()))
