"""TLS certificate and key of the server."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from sluice.base.errors import SettingsError
from sluice.base.secret_files import read_secret_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Certificate and key of a server, as files in PEM format."""

    cert: Path
    """Certificate, followed by the intermediate certificates."""

    key: Path
    """Private key without a passphrase."""

    @classmethod
    def read(cls, cert: Path, key: Path) -> "Tls":
        """Check that a certificate and a key match, and return them.

        Raises:
            StorageError: The key cannot be read.
            SettingsError: Other users may read the key; or the files are not a certificate and
                its key.
        """
        read_secret_file(key, what="TLS key file")
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                cert,
                key,
                password=lambda: "",  # without it, OpenSSL prompts in the terminal
            )
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise SettingsError(
                f"--tls-cert and --tls-key must be a certificate and its private key in PEM "
                f"format, got {cert} and {key} ({error}).",
                fix="Give a matching pair of files. The key must have no passphrase.",
            ) from None
        return cls(cert=cert, key=key)
