"""The draft server: takes requests from users, proposes tokens, and streams what is verified."""
