//! Automatic writeback as a whole, on a simulated store with a simulated clock.

mod limits;
mod machine;
mod pages;
mod simulated;
mod writers;
