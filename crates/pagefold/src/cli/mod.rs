//! The parts that commands share: printing, lists, and going on after a failure.
//!
//! | module | contains |
//! |---|---|
//! | `list` | the options and the table of lists |
//! | `each` | commands on several things, which go on after a failure |
//! | `progress`, `chart` | progress bars; histograms of latencies |
//! | `page` | text in sections, with rows of a name and a value |
//! | `output` | all writing to standard output and standard error |
//! | `exit` | the exit code of the process |
//! | `printable` | text with names that other people chose, escaped for terminals |
//! | `numbers`, `style` | digits in groups; colours |
//! | `values` | parsing of values of options |

pub mod chart;
pub mod each;
pub mod exit;
pub mod list;
pub mod numbers;
pub mod output;
pub mod page;
pub mod printable;
pub mod progress;
pub mod style;
pub mod values;
