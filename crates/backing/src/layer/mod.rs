//! Layers: a medium over a medium.
//!
//! A layer implements [`Backing`](crate::Backing) over another and wraps its queues as well, so that
//! both ways in meet the same. What programs use is the delay layer, which models a slow device. Layers of
//! faults, logs and the like are for tests: they are in `testing`, behind the feature of that name, so that no program
//! carries them.

mod delay;
mod pace;
#[cfg(feature = "testing")]
mod testing;

pub use delay::{DelayLayer, DelayOptions};
pub use pace::{Clock, SystemClock};
#[cfg(feature = "testing")]
pub use testing::*;

/// A number that looks random, the same for the same seed and step (splitmix64, by Sebastiano Vigna).
fn mix(seed: u64, step: u64) -> u64 {
    let z = seed.wrapping_add(step.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
