"""Addresses, tokens and certificates of servers and their clients."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
from pathlib import Path
from typing import Final

from .._platform import files
from .._values import hints
from .._values.errors import ConfigError, InvalidArgument, StoreError

BACKLOG: Final = 128
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")
_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253})):([0-9]{1,5})")
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def address(host: str, port: int) -> str:
    """Return host and port as one string."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def require_token(token: object) -> str:
    """Return the token if it is valid.

    Raises:
        InvalidArgument: it cannot be sent in a header, or is too short for a secret.
    """
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise InvalidArgument("a token must have 16 to 512 letters, digits or ._~+/=-", hint=hints.MAKE_TOKEN)
    return token


def read_token(path: str | os.PathLike[str]) -> str:
    """Return the token in a file, without surrounding white space.

    Raises:
        ConfigError: the file is missing, can't be read, or has no valid token.
    """
    try:
        fd = files.open_regular(Path(path), os.O_RDONLY)
    except (OSError, StoreError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else e
        raise ConfigError(f"the token file {os.fspath(path)} can't be read: {reason}", hint=hints.TOKEN_FILE) from e
    try:
        with files.typed("the token file can't be read"):
            found = os.read(fd, 1 << 12)
    finally:
        os.close(fd)
    try:
        return require_token(found.decode("ascii").strip())
    except (UnicodeDecodeError, InvalidArgument) as e:
        raise ConfigError(
            f"the token file {os.fspath(path)} must contain 16 to 512 letters, digits or ._~+/=-", hint=hints.TOKEN_FILE
        ) from e


def host_and_port(what: str, text: str) -> tuple[str, int]:
    """Parse "host:port" or "[address]:port".

    Raises:
        InvalidArgument: the text has another form.
    """
    found = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    port = int(found[3]) if found else 0
    if found is None or port > 65_535:
        raise InvalidArgument(f"{what} must be HOST:PORT, not {text!r}", hint=hints.HOST_AND_PORT)
    return found[1] or found[2], port


def require_protected(what: str, host: str, *, tls: bool, plaintext: bool) -> None:
    """Raise if a server or client would use a network without TLS.

    Raises:
        InvalidArgument: the token and messages would cross a network unencrypted, and `plaintext` is False.
    """
    if tls or plaintext or host == "localhost":
        return
    try:
        if ipaddress.ip_address(host).is_loopback:
            return
    except ValueError:
        pass  # a host name
    raise InvalidArgument(
        f"{what} without TLS would send its token and all messages over the network unencrypted", hint=hints.USE_TLS
    )


def listen(what: str, host: str, port: int) -> socket.socket:
    """Return a listening socket. `what` names the listener in error texts.

    Raises:
        ConfigError: the address can't be used.
    """
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(where[:2], family=family, backlog=BACKLOG)
    except OSError as e:
        raise ConfigError(f"{what} can't listen at {address(host, port)}: {e.strerror or e}", hint=hints.HOST_AND_PORT) from e


def certified(
    what: str,
    certificate: str | os.PathLike[str],
    private_key: str | os.PathLike[str] | None,
    authority: str | os.PathLike[str] | None,
) -> tuple[tuple[str, str | None], str]:
    """Return a server's certificate and key files, and the PEM text that its clients trust.

    Raises:
        ConfigError: a file can't be read, or they do not match.
    """
    chain = os.path.abspath(certificate)
    key = None if private_key is None else os.path.abspath(private_key)
    try:
        server_context(chain, key)
        # Without the private key, which may be in the same file.
        trusted = "\n".join(_CERTIFICATE.findall(Path(authority or chain).read_text("ascii"))) + "\n"
        ssl.create_default_context(cadata=trusted)
    except (OSError, ValueError) as e:
        raise ConfigError(f"{what} can't use this certificate: {e}", hint=hints.GIVE_PEM) from e
    return (chain, key), trusted


def server_context(certificate: str, private_key: str | None) -> ssl.SSLContext:
    """Return a TLS context with this certificate. An encrypted key is refused; OpenSSL would ask for its password."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, private_key, password="")
    return context


def client_context(authority: str | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificates in this file, or the system's. Host names are verified.

    Raises:
        ConfigError: the file can't be used.
    """
    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ValueError) as e:
        raise ConfigError(f"the certificates in {authority} can't be used: {e}", hint=hints.GIVE_PEM) from e
