"""The common parts of strictq's servers: authentication and connections. They serve plain HTTP with the standard library."""
