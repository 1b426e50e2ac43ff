"""What the primitives make of the driver interface, beyond what a mutex is."""
