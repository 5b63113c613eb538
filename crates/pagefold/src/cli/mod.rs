//! Printing: results, notes and errors; lists; progress bars; histograms.

pub mod chart;
pub mod each;
pub mod list;
pub mod numbers;
pub mod output;
pub mod page;
pub mod progress;
pub mod style;
