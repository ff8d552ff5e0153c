"""How problems and their solutions look: pictures for people."""
