"""The HTTP API: a scheduler that shares network calls between requests, and the endpoints."""
