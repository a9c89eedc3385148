"""Every private part of JAX that we touch, each with its fallback."""
