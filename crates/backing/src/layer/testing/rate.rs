//! A bound on bytes per second.

use super::{Access, Action, Clock, Hook, Layered, transfer_time};
use crate::{Backing, BackingError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A medium with a bounded rate of reads and writes together. A request over it waits before it is
/// passed on; with a queue, that is in `submit`.
pub type RateLayer<B> = Layered<B, RateControl>;

/// A token bucket: filled at the rate, emptied by requests, never fuller than one second's worth.
///
/// A request larger than what is there takes the bucket below zero, and the next ones wait for it: so
/// any request passes some time, and the rate holds on average.
pub struct RateControl {
    clock: Arc<dyn Clock>,
    bucket: Mutex<Bucket>,
}

struct Bucket {
    bytes_per_s: u64,
    /// When everything taken so far is paid for: the bucket's level, as a time. In the past if it holds
    /// tokens.
    paid_until: Duration,
}

impl RateControl {
    /// Changes the rate; 0 means no bound. What was taken before stays paid at the old rate.
    pub fn set_bytes_per_s(&self, bytes_per_s: u64) {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner).bytes_per_s = bytes_per_s;
    }

    /// Takes tokens, and returns when the request may go.
    fn take(&self, len_bytes: u64) -> Option<Duration> {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        if bucket.bytes_per_s == 0 {
            return None;
        }
        let full_since = self.clock.now().saturating_sub(Duration::from_secs(1));
        let go = bucket.paid_until.max(full_since);
        bucket.paid_until = go + transfer_time(len_bytes, bucket.bytes_per_s);
        Some(go)
    }
}

impl<B: Backing> RateLayer<B> {
    /// A bound of `bytes_per_s` (0: none yet) by `clock`. The bucket begins empty.
    pub fn new(inner: B, bytes_per_s: u64, clock: Arc<dyn Clock>) -> Self {
        let bucket = Mutex::new(Bucket { bytes_per_s, paid_until: clock.now() });
        Layered::over(inner, Arc::new(RateControl { clock, bucket }))
    }
}

impl Hook for RateControl {
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
            0 => "without a bound on its rate".to_string(),
            rate => format!("at most {rate} bytes per second"),
        }
    }
}
