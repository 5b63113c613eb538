//! Every order of the steps of a few threads, with loom: nothing is built without `--cfg loom`.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod parking;
mod slot;
mod throttle;

/// All schedules with up to three forced switches: more take hours and have never shown a bug that
/// fewer do not (Musuvathi and Qadeer, "Iterative Context Bounding", 2007).
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(3));
    builder.check(model);
}
