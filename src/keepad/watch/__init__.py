"""Watched folders and cameras: one result for every image, delivered to files, webhooks and MQTT. No torch."""
