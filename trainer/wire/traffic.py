"""What collectives carried on one rank: payload bytes by collective and direction."""

from fractions import Fraction

SENT, RECEIVED = DIRECTIONS = ("sent", "received")
Amounts = dict[tuple[str, str], int]  # whole bytes by (collective, direction)


class Traffic:
    """Adds up bytes.

    A ring of n ranks sends n-ths of a tensor, so there are fractions of a byte, kept exactly.
    """

    def __init__(self):
        self._bytes: dict[tuple[str, str], int | Fraction] = {}

    def add(self, collective: str, sent: int | Fraction, received: int | Fraction) -> None:
        """Count what one call of a collective sent and received."""
        for direction, amount in zip(DIRECTIONS, (sent, received), strict=True):
            self._bytes[collective, direction] = self._bytes.get((collective, direction), 0) + amount

    def take(self) -> Amounts:
        """What has been added since the last call; a rest of a fraction of a byte waits for the next."""
        amounts = {key: whole for key, amount in self._bytes.items() if (whole := int(amount))}
        self._bytes = {key: amount - amounts.get(key, 0) for key, amount in self._bytes.items()}
        return amounts

    def copy(self) -> "Traffic":
        """As it is now."""
        other = Traffic()
        other._bytes = dict(self._bytes)
        return other


def total(amounts: Amounts) -> tuple[int, int]:
    """Bytes sent and received, over all collectives."""
    sent, received = (sum(n for (_, way), n in amounts.items() if way == direction) for direction in DIRECTIONS)
    return sent, received
