"""Pseudonyms: what stands for a patient or a file once ingest is done.

The header's flag "PatientIdentityRemoved" is never believed and file names are not trusted either:
outputs speak of pseudonyms and of the number of a file among the sorted paths of its source.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from domains.xray.config import PrivacySection
from shared.errors import InputError

_PUBLIC_SALT = b"casebook"


@dataclass(frozen=True)
class Pseudonyms:
    """Makes pseudonyms with one secret.

    Attributes:
        salt: The secret, as bytes.
        secret: False for the built-in salt, which everybody knows.
        show_paths: Files are named by their relative path.
    """

    salt: bytes
    secret: bool
    show_paths: bool

    @classmethod
    def of(cls, settings: PrivacySection, *, synthetic: bool = False) -> Pseudonyms:
        """Pseudonyms as the settings say; files of synthetic sources are named by their path.

        Raises:
            InputError: The salt's file is missing or empty.
        """
        show = synthetic or settings.file_names == "path"
        if not settings.salt_file:
            return cls(_PUBLIC_SALT, False, show)
        try:
            salt = Path(settings.salt_file).expanduser().read_bytes().strip()
        except OSError as error:
            raise InputError(
                f"privacy.salt_file cannot be read: {error.strerror}.",
                "Give a file with a secret text in it.",
            ) from None
        if len(salt) < 8:
            raise InputError("privacy.salt_file holds fewer than 8 bytes.", "Put a longer secret in it.")
        return cls(salt, True, show)

    def patient(self, key: str) -> str:
        """The pseudonym of a patient, ``p-`` and 12 hex digits; the same key gives the same one for ever."""
        return "p-" + self._digest("patient", key, 6)

    def film(self, pixels: str) -> str:
        """The pseudonym of a film, from the hash of its pixels."""
        return "f-" + self._digest("film", pixels, 4)

    def file(self, number: int, relative: str) -> str:
        """How outputs name a file: its path where that is allowed, else its number and a short hash."""
        if self.show_paths:
            return relative
        return f"file {number} ({self._digest('file', relative, 3)})"

    def _digest(self, kind: str, text: str, size: int) -> str:
        data = f"{kind}\0{text}".encode("utf-8", "surrogateescape")
        return hashlib.blake2b(data, key=self.salt[:64], digest_size=size).hexdigest()
