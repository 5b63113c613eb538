//! Estimates latency and bandwidth of a server, and the request length that follows (4 x bandwidth-delay product).
//!
//! A request takes a latency until its first byte, and then its bytes at the rate of the link. A short one wastes the
//! latency; a long one makes a reader wait for bytes that it does not want yet. So a request has four times the bytes that
//! the link carries in a latency (four times the bandwidth-delay product), within limits: then a single reader uses four
//! fifths of the link, and those that are fetched ahead the rest.
//!
//! Both are moving averages over requests. The latency follows shorter times fast and longer ones slowly, because a
//! busy server makes single requests slow. The rate is that of all requests under way together: those of one source
//! share the link. Nothing here measures by itself: callers pass the times.

use std::time::Duration;

/// Bytes of a request, in bandwidth-delay products.
const PRODUCTS: f64 = 4.0;
/// Limits of requests, bytes.
const MIN_BYTES: u64 = 256 << 10;
const MAX_BYTES: u64 = 2 << 20;
/// Bytes of a request as long as nothing was measured.
const FIRST_BYTES: u64 = 1 << 20;
/// Shorter bodies say nothing of the rate: they come in one piece.
const LEAST_BODY_BYTES: u64 = 128 << 10;

/// The times of a request that succeeded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// From sending it to the head of the answer.
    pub(crate) head: Duration,
    /// From the head to the last byte.
    pub(crate) body: Duration,
    /// Bytes of the body.
    pub(crate) bytes: u64,
    /// Requests under way at its end, this one included.
    pub(crate) active: u64,
}

/// The estimate of a link.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Link {
    latency_s: Option<f64>,
    bytes_per_s: Option<f64>,
}

impl Link {
    /// Adds a measurement.
    pub(crate) fn add(&mut self, timing: Timing) {
        let head_s = timing.head.as_secs_f64();
        let latency_s = self.latency_s.map_or(head_s, |old| {
            let weight = if head_s < old { 0.5 } else { 1.0 / 16.0 };
            old + weight * (head_s - old)
        });
        self.latency_s = Some(latency_s);
        // Bytes that came with the head were not waited for: so the time after the latency counts, not that after the head.
        let transfer_s = (timing.body.as_secs_f64()).max(head_s + timing.body.as_secs_f64() - latency_s);
        if timing.bytes >= LEAST_BODY_BYTES && transfer_s > 0.0 {
            let rate = timing.bytes as f64 * timing.active.max(1) as f64 / transfer_s;
            self.bytes_per_s = Some(self.bytes_per_s.map_or(rate, |old| old + 0.25 * (rate - old)));
        }
    }

    /// The bytes that a request should have.
    pub(crate) fn request_bytes(&self) -> u64 {
        match (self.latency_s, self.bytes_per_s) {
            (Some(latency_s), Some(rate)) => {
                ((PRODUCTS * latency_s * rate) as u64).clamp(MIN_BYTES, MAX_BYTES)
            }
            _ => FIRST_BYTES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link without chance: `active` requests share its rate.
    #[derive(Clone, Copy)]
    struct Simulated {
        latency_ms: f64,
        mbit_per_s: f64,
        active: u64,
    }

    impl Simulated {
        fn request(&self, bytes: u64) -> Timing {
            let body_s = bytes as f64 * 8.0 / (self.mbit_per_s * 1e6) * self.active as f64;
            let (head, body) = (self.latency_ms / 1e3, body_s);
            let [head, body] = [head, body].map(Duration::from_secs_f64);
            Timing { head, body, bytes, active: self.active }
        }

        /// Sends requests of the length that the estimate says, and returns the last length.
        fn run(&self, link: &mut Link, requests: usize) -> u64 {
            (0..requests).for_each(|_| link.add(self.request(link.request_bytes())));
            link.request_bytes()
        }
    }

    #[test]
    fn requests_have_four_products_of_rate_and_latency_within_limits() {
        for (latency_ms, mbit_per_s, expected) in [
            (20.0, 100.0, 1_000_000),
            (80.0, 40.0, 1_600_000),
            (0.1, 10_000.0, 500_000),
            (200.0, 1000.0, MAX_BYTES),
            (5.0, 10.0, MIN_BYTES),
        ] {
            for active in [1, 2, 5] {
                let bytes = Simulated { latency_ms, mbit_per_s, active }.run(&mut Link::default(), 20);
                let ratio = bytes as f64 / expected as f64;
                assert!((0.98..1.02).contains(&ratio), "{latency_ms} ms, {mbit_per_s} Mbit/s: {bytes}");
            }
        }
        assert_eq!(Link::default().request_bytes(), FIRST_BYTES);
    }

    #[test]
    fn the_estimate_follows_a_link_that_changes_and_ignores_a_single_slow_request() {
        let near = Simulated { latency_ms: 10.0, mbit_per_s: 400.0, active: 3 };
        let far = Simulated { latency_ms: 40.0, ..near };
        let mut link = Link::default();
        let before = near.run(&mut link, 20);
        link.add(Simulated { latency_ms: 500.0, ..near }.request(before));
        let ratio = link.request_bytes() as f64 / before as f64;
        assert!(ratio < 5.0 && near.run(&mut link, 10) as f64 / (before as f64) < 1.02);
        assert_eq!(far.run(&mut link, 60), MAX_BYTES);
        let again = near.run(&mut link, 10) as f64 / before as f64;
        assert!((0.95..1.05).contains(&again), "{again}");
        // Short bodies do not count for the rate.
        let fast = Simulated { mbit_per_s: 1e6, ..near };
        (0..50).for_each(|_| link.add(fast.request(64 << 10)));
        assert!((0.95..1.05).contains(&(link.request_bytes() as f64 / before as f64)));
    }

    /// The policy against fixed lengths, for one reader in order: the time of a simulated read of 200 MB, and the
    /// longest time that a reader waits for one block.
    #[test]
    fn a_reader_in_order_is_near_the_rate_of_the_link_and_waits_briefly() {
        for (latency_ms, mbit_per_s) in [(20.0, 100.0), (80.0, 40.0), (2.0, 1000.0)] {
            let simulated = Simulated { latency_ms, mbit_per_s, active: 1 };
            let (mut link, mut left, mut took_s, mut longest_s) =
                (Link::default(), 200_000_000_u64, 0.0, 0_f64);
            while left > 0 {
                let timing = simulated.request(link.request_bytes().min(left));
                let s = (timing.head + timing.body).as_secs_f64();
                (left, took_s, longest_s) = (left - timing.bytes, took_s + s, longest_s.max(s));
                link.add(timing);
            }
            let plain_s = 200e6 * 8.0 / (mbit_per_s * 1e6);
            assert!(took_s < 1.30 * plain_s, "{latency_ms} ms: {took_s} s and not {plain_s} s");
            assert!(longest_s < 6.0 * latency_ms / 1e3 + 0.11, "{latency_ms} ms: {longest_s} s");
        }
    }
}
