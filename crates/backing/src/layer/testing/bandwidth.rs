//! A limit on bytes per second: a token bucket.

use super::{Access, Action, Hook, Layered, TimeSource};
use crate::{Backing, BackingError};
use pagefold_page::TokenBucket;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A medium with a limit on the bandwidth of reads and writes together. A request beyond the limit waits before it goes
/// to the medium below; on a queue it waits in `submit`.
pub type BandwidthLayer<B> = Layered<B, BandwidthControl>;

/// The capacity of the bucket, as time.
const BURST: Duration = Duration::from_secs(1);

/// A token bucket with a capacity of one second.
///
/// A request may take more tokens than the bucket holds; later requests then wait until the debt is paid. So a request
/// of any size passes, and the limit holds on average.
pub struct BandwidthControl {
    clock: Arc<dyn TimeSource>,
    bucket: Mutex<Bucket>,
}

struct Bucket {
    bytes_per_s: u64,
    tokens: TokenBucket,
}

impl BandwidthControl {
    /// Changes the limit; 0 means none, and forgets a debt. Otherwise a debt is paid at the new limit.
    pub fn set_bytes_per_s(&self, bytes_per_s: u64) {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let old = bucket.bytes_per_s;
        bucket.tokens.fill(self.clock.now(), old);
        bucket.bytes_per_s = bytes_per_s;
    }

    /// Takes tokens, and returns the time at which the request may start; `None` without a limit.
    fn take(&self, len_bytes: u64) -> Option<Duration> {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let Bucket { bytes_per_s, tokens } = &mut *bucket;
        let now = self.clock.now();
        tokens.fill(now, *bytes_per_s);
        if *bytes_per_s == 0 {
            return None;
        }
        let start = now.saturating_add(tokens.debt_wait(*bytes_per_s));
        tokens.take(len_bytes);
        Some(start)
    }
}

impl<B: Backing> BandwidthLayer<B> {
    /// Makes a layer with a limit of `bytes_per_s` (0: none yet), measured by `clock`. The bucket is empty at first.
    pub fn new(inner: B, bytes_per_s: u64, clock: Arc<dyn TimeSource>) -> Self {
        let tokens = TokenBucket::new(clock.now(), BURST);
        let bucket = Mutex::new(Bucket { bytes_per_s, tokens });
        Layered::over(inner, Arc::new(BandwidthControl { clock, bucket }))
    }
}

impl Hook for BandwidthControl {
    fn before(&self, _: &dyn Backing, access: Access, _: Option<&[u8]>) -> Option<Result<(), BackingError>> {
        if matches!(access.action, Action::Read | Action::Write)
            && let Some(go) = self.take(access.len_bytes)
        {
            self.clock.wait_until(go);
        }
        None
    }

    fn describe(&self) -> String {
        match self.bucket.lock().unwrap_or_else(PoisonError::into_inner).bytes_per_s {
            0 => "without a limit on its bandwidth".to_string(),
            limit => format!("at most {limit} bytes per second"),
        }
    }
}
