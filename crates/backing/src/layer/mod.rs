//! Layers: media that wrap another medium.
//!
//! A layer implements [`Backing`](crate::Backing) over another medium and wraps its queues too, so that single requests
//! and queued ones behave alike. Programs use only the delay layer, which models a slow device. The layers for tests
//! (faults, torn writes, traces, counters) are in `testing`, behind the feature of that name, so that
//! release programs do not contain them.
//!
//! A layer runs in the thread that calls it. Each has at most one mutex, which it does not hold while the medium below
//! works.

mod delay;
#[cfg(feature = "testing")]
mod testing;
mod time;

pub use delay::{DelayLayer, DelayOptions};
#[cfg(feature = "testing")]
pub use testing::*;
pub use time::{SystemClock, TimeSource};

/// The pseudo-random number `step` of the sequence `seed` (splitmix64, by Sebastiano Vigna).
fn splitmix64(seed: u64, step: u64) -> u64 {
    let z = seed.wrapping_add(step.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
