"""How messages are stored. The one door is api.py."""
