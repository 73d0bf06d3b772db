//! Per-processor objects.
