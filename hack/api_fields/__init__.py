"""The tables of the API's fields in docs/API.md, made from the schemas that the server checks bodies with."""
