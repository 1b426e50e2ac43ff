"""What `holdfast.prometheus` and `holdfast.opentelemetry` have in common."""
