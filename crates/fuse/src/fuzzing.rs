//! Answers requests in memory as rings do, without a kernel, for fuzz targets and tests.

use crate::answer::Access;
use crate::ending::Ending;
use crate::filesystem::{FileSystem, Unsupported};
use crate::interrupt::Interrupts;
use crate::negotiate::{Features, Offer};
use crate::ring::is_long;
use crate::state::Session;
pub use pagefold_sys::fusering::{Exchange, HEADERS};

/// A file system whose requests come as they do in the entries of a ring.
pub struct RingRequests<F>(Session<F>);

impl<F: FileSystem> RingRequests<F> {
    /// Negotiates with all features of the kernel.
    pub fn new(mut file_system: F) -> Result<Self, Unsupported> {
        let settings = file_system.init(&Offer { features: Features(u64::MAX) })?;
        let ending = Ending::new().map_err(|_| Unsupported("the process may have no further descriptor"))?;
        Ok(RingRequests(Session {
            is_kept: false,
            file_system,
            access: Access::Anybody,
            settings,
            ending: ending.into(),
            interrupts: Interrupts::new(),
        }))
    }

    /// Answers the request in an entry: puts the header of the reply in the place of the header, and its data at the
    /// beginning of the payload. Returns the length of the data.
    pub fn answer(&self, entry: Exchange<'_>) -> usize {
        let _ = is_long(&entry);
        self.0.answer_in(entry).1
    }
}
