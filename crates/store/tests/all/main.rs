//! All tests of the store that need no process of their own, in one program, which takes less time to build than many.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod load;
mod load_stress;
mod model;
mod parking_automatic;
mod parking_clean;
mod parking_faults;
mod parking_in_flight;
mod parking_medium;
mod parking_model;
mod parking_reused_backing;
mod parking_stress;
mod parking_torn;
mod refusal;
mod room;
#[path = "../support/mod.rs"]
mod support;
mod write_same_filled;
