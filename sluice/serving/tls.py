"""TLS of the server itself."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from sluice.base.errors import SettingsError
from sluice.base.secret_files import read_secret_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files in PEM format."""

    cert: Path
    """Certificate, with those between it and the authority."""

    key: Path
    """Private key, without a pass phrase."""

    @classmethod
    def read(cls, cert: Path, key: Path) -> "Tls":
        """Return the files once they were seen to belong together.

        Raises:
            StorageError: The key cannot be read.
            SettingsError: Others may read the key; or the files are no certificate and key of it.
        """
        read_secret_file(key, what="TLS key file")
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                cert,
                key,
                password=lambda: "",  # or a terminal would be asked
            )
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise SettingsError(
                f"--tls-cert and --tls-key must be a certificate and its private key in PEM "
                f"format, got {cert} and {key} ({error}).",
                fix="Name the right files; the key must have no pass phrase.",
            ) from None
        return cls(cert=cert, key=key)
