//! [`Polling`]: how the threads of a server save the time that sleeping CPUs and threads take to wake up, between requests that
//! follow each other closely.
//!
//! A server starts one [`Poller`] for all of its threads; each of them has a [`Spinner`] of it, or notes its replies and
//! requests. The caller decides which way is better: [`awake`](crate::awake) and [`spin`](crate::spin) say how much each of
//! them costs.

use crate::awake::AwakeCpus;
use crate::spin::Spinner;
use std::sync::Arc;
use std::time::Duration;

/// How the threads of a server wait for requests that come within a time after the reply before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Polling {
    /// They sleep.
    #[default]
    Never,
    /// They sleep, and idle CPUs are kept from sleeping where this process can do that.
    AwakeCpus(Duration),
    /// As with `AwakeCpus`. Where this process cannot do that, threads look for their next request before they sleep.
    AwakeCpusOrSpin(Duration),
    /// They look for their next request before they sleep.
    Spin(Duration),
}

/// The state that the threads of a server share for their [`Polling`].
#[derive(Debug, Clone, Default)]
pub struct Poller {
    awake: Option<Arc<AwakeCpus>>,
    /// The longest time to spin; zero: never.
    spin: Duration,
}

impl Poller {
    /// Starts what the choice needs: a thread, if CPUs are to be kept awake. That thread has the
    /// privileges of the caller at this time.
    pub fn start(polling: Polling) -> Self {
        let (soon, spin) = match polling {
            Polling::Never => (None, Duration::ZERO),
            Polling::AwakeCpus(soon) => (Some(soon), Duration::ZERO),
            Polling::AwakeCpusOrSpin(soon) => (Some(soon), soon),
            Polling::Spin(spin) => (None, spin),
        };
        let awake = soon.filter(|soon| !soon.is_zero()).and_then(|soon| AwakeCpus::start(soon).ok());
        let spin = if awake.is_some() { Duration::ZERO } else { spin };
        Poller { awake: awake.map(Arc::new), spin }
    }

    /// Whether idle CPUs are kept from sleeping while requests follow each other closely.
    pub fn keeps_cpus_awake(&self) -> bool {
        self.awake.is_some()
    }

    /// How a thread waits for its next request.
    pub fn spinner(&self) -> Spinner {
        Spinner::new(self.spin, self.awake.clone())
    }

    /// Notes that a thread has replied, and waits for its next request without a spinner.
    pub fn note_reply(&self) {
        self.awake.iter().for_each(|awake| awake.note_reply());
    }

    /// Notes that a request came to a thread that has waited without a spinner.
    pub fn note_request(&self) {
        self.awake.iter().for_each(|awake| awake.note_request());
    }
}
