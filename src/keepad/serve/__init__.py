"""The service: predictions over HTTP, the Open Inference Protocol, metrics, and a page. Imports no torch."""
