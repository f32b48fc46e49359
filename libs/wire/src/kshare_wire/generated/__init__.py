"""Messages and their table, made from the definitions of kio by libs/wire/generate_messages.py."""
