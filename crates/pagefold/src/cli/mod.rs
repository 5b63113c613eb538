//! Words in, text out: the command line's definitions and what they mean, and
//! how results are printed.

pub mod args;
pub mod chart;
pub mod date;
pub mod output;
pub mod progress;
pub mod request;
