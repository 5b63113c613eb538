//! Model checks with loom of all interleavings of a few threads; built with `--cfg loom` only.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod slot;
mod throttle;
mod writeback;

/// Checks all schedules with up to three preemptions: more take hours and have never found a bug that fewer do not
/// find (Musuvathi and Qadeer, "Iterative Context Bounding", 2007).
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(3));
    builder.check(model);
}
