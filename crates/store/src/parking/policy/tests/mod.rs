//! The parts of automatic parking together, on a made-up store with a made-up clock.

mod limits;
mod machine;
mod pages;
mod simulated;
mod writers;
