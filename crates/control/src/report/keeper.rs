//! The report on a keeper: a part of the JSON of `disk show` and `image stats`.

use crate::instance::InstanceDir;
use crate::instance::keeper::ServerEnd;
use crate::text;
use serde::{Deserialize, Serialize};

/// Whether a disk or a mount outlives its server, and how often it did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeeperReport {
    /// Why it does not outlive its server; null if it does.
    pub without_keeper: Option<String>,
    /// How often a server was started after the death of one.
    pub restarts: u64,
    /// When the last one died, seconds since 1970; null if none did.
    pub died_unix_s: Option<u64>,
    /// How that one ended.
    pub end: Option<ServerEnd>,
}

impl KeeperReport {
    /// That of the instance in `dir`, unless it is not kept for a reason.
    pub fn new(dir: &InstanceDir, not_kept: Option<&str>) -> Self {
        let state = dir.keeper().filter(|_| not_kept.is_none());
        KeeperReport {
            without_keeper: not_kept.map(str::to_string),
            restarts: state.as_ref().map_or(0, |state| state.restarts),
            died_unix_s: state.as_ref().and_then(|state| state.died_unix_s),
            end: state.and_then(|state| state.end),
        }
    }

    /// The consequence of the death of the server, and the last one, in words. `otherwise` is the consequence without a keeper.
    pub fn in_words(&self, otherwise: &str) -> String {
        match (&self.without_keeper, self.end, self.died_unix_s) {
            (Some(why), _, _) => format!("{otherwise}: {why}"),
            (None, Some(end), Some(at)) => {
                let times = text::counted(self.restarts, "time", "times");
                let at = text::time_text(i64::try_from(at).unwrap_or(i64::MAX));
                format!("another one serves; {times} so far, the last at {at}: {end}")
            }
            (None, _, _) => "another one serves".into(),
        }
    }
}
