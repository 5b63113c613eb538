//! The reports of servers on themselves and of commands, as plain data: they are what commands print with `--json`.
//!
//! `docs/json/` has their JSON Schemas, which the module `schema` makes from these
//! types: the comments of fields are their documentation.
//!
//! The names of fields end in their unit, and values are exact. `pagefold_server` computes them.

pub mod disk;
pub mod image;
pub mod keeper;
pub mod mount;
pub mod recompress;
pub mod saved;
#[cfg(feature = "schema")]
pub mod schema;
pub mod writeback;

use pagefold_page::latency::{Latency, bucket_end_ns};
use pagefold_sys::pidfd;
use serde::{Deserialize, Serialize};

/// The version of the JSON documents of commands. It grows when a field is removed or changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// A server process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServerReport {
    /// Its process id.
    pub pid: u32,
    /// The program's version.
    pub version: String,
    /// All memory of the process that is in RAM; null if it cannot be read.
    pub rss_bytes: Option<u64>,
    /// Highest value of `rss_bytes` so far.
    pub peak_rss_bytes: Option<u64>,
}

impl ServerReport {
    /// The report on the calling process.
    pub fn of_this_process() -> Self {
        ServerReport {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            rss_bytes: pidfd::own_rss_bytes(),
            peak_rss_bytes: pidfd::own_peak_rss_bytes(),
        }
    }
}

/// How a server is confined: what an attacker could not do who has taken it over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfinementReport {
    /// The user that the server of root has become, which owns nothing; null if it is that of the command.
    pub user: Option<u32>,
    /// Whether it can open no files (landlock).
    pub files: bool,
    /// Whether it can signal no other processes, and connect to no abstract sockets (landlock of Linux 6.12).
    pub signals: bool,
    /// Whether its system calls are filtered (seccomp).
    pub system_calls: bool,
    /// Why parts of it are missing, a clause for each.
    pub missing: Vec<String>,
}

impl ConfinementReport {
    /// The parts in force, and the others, in words.
    pub fn in_words(&self) -> String {
        let user = self.user.map(|user| format!("user {user}"));
        let parts = [(self.files, "files"), (self.signals, "signals"), (self.system_calls, "system calls")];
        let parts =
            parts.into_iter().filter(|(is_in_force, _)| *is_in_force).map(|(_, name)| name.to_string());
        let parts = user.into_iter().chain(parts).collect::<Vec<_>>().join(", ");
        let parts = if parts.is_empty() { "no".to_string() } else { parts };
        std::iter::once(parts).chain(self.missing.iter().cloned()).collect::<Vec<_>>().join("; ")
    }
}

/// A latency histogram since it was last reset. Percentiles are upper bounds, less than twice too high.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LatencyReport {
    /// Half of the requests took no longer. Null without requests, as are the others.
    pub p50_ns: Option<u64>,
    /// 90 % took no longer.
    pub p90_ns: Option<u64>,
    /// 99 % took no longer.
    pub p99_ns: Option<u64>,
    /// 99.9 % took no longer.
    pub p999_ns: Option<u64>,
    /// The longest.
    pub max_ns: Option<u64>,
    /// Requests by time: bounds are powers of two. Empty buckets are left out.
    pub buckets: Vec<Bucket>,
}

impl LatencyReport {
    /// The figures of a histogram.
    pub fn new(latency: &Latency) -> Self {
        let full = latency.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
        LatencyReport {
            p50_ns: latency.quantile_ns(500),
            p90_ns: latency.quantile_ns(900),
            p99_ns: latency.quantile_ns(990),
            p999_ns: latency.quantile_ns(999),
            max_ns: (latency.count() > 0).then_some(latency.max_ns),
            buckets: full.map(|(b, n)| Bucket { below_ns: bucket_end_ns(b), requests: *n }).collect(),
        }
    }
}

/// One bucket of a latency histogram: requests that took less than `below_ns`, and at least half of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bucket {
    /// Exclusive upper bound.
    pub below_ns: u64,
    /// Number of requests.
    pub requests: u64,
}
