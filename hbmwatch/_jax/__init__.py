"""Every private part of JAX that hbmwatch uses, each with a fallback."""
