"""What our servers have in common: who comes in, and how. They serve plain HTTP of the standard library, with token and TLS."""
