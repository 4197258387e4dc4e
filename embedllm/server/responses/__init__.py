"""OpenAI's Responses: requests and replies in the forms of /v1/responses."""
