//! Where parked pages live: one narrow seam, and its memory implementation.
