"""The storage of messages. Other packages import only api.py."""
