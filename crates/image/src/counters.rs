//! Groups of counters that threads add to without locks, and their snapshots.

use std::sync::atomic::{AtomicU64, Ordering};

/// Declares a struct of numbers, and a group of counters of which it is the snapshot. A snapshot is not atomic: its
/// counters may differ by an operation under way.
macro_rules! counters {
    (
        $(#[$stats_meta:meta])* pub struct $stats:ident of $counters:ident {
            $($(#[$meta:meta])* $name:ident,)*
        }
    ) => {
        $(#[$stats_meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $stats { $($(#[$meta])* pub $name: u64),* }

        #[derive(Default)]
        pub(crate) struct $counters { $(pub(crate) $name: $crate::counters::Counter),* }

        impl $counters {
            pub(crate) fn snapshot(&self) -> $stats {
                $stats { $($name: self.$name.get()),* }
            }
        }
    };
}

pub(crate) use counters;

/// A counter.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
