//! The tests of the store that need no separate process, in one program, which links faster than many.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod fetch;
mod kept;
mod load;
mod load_stress;
mod model;
mod overwrite;
mod recompress;
mod refusal;
mod room;
mod save;
mod save_incremental;
mod slot_state;
#[path = "../support/mod.rs"]
mod support;
mod write_same_filled;
mod writeback_automatic;
mod writeback_clean;
mod writeback_faults;
mod writeback_in_flight;
mod writeback_medium;
mod writeback_model;
mod writeback_reused_backing;
mod writeback_ring;
mod writeback_stress;
mod writeback_torn;
