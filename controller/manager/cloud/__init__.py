"""The cloud provider as reconcilers see it: with NodeOverlays, and with metrics of its calls."""
