"""What the driver interface promises."""
