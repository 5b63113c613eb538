//! Working states of decompressors, kept between clusters.
//!
//! A state is paid for from the grant of the cluster that first needed it, and stays charged while it is idle; idle
//! ones are given up when the budget needs the memory.

use crate::ImageError;
use crate::read::{Algorithm, Cluster};
use pagefold_backing::{Charge, Grant};
use pagefold_codec::cluster::{Decoder, Format};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Idle states kept at most.
const MAX_IDLE: usize = 8;

/// What the image says about its compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Formats {
    pub(crate) lz4_window_bytes: u32,
    pub(crate) lzma_dict_bytes: u32,
    pub(crate) zstd_window_bytes: u32,
}

impl Formats {
    pub(crate) fn of(&self, algorithm: Algorithm) -> Format {
        match algorithm {
            Algorithm::Lz4 => Format::Lz4 { window_bytes: self.lz4_window_bytes },
            Algorithm::MicroLzma => Format::MicroLzma { dict_bytes: self.lzma_dict_bytes },
            Algorithm::Deflate => Format::Deflate,
            Algorithm::Zstd => Format::Zstd { max_window_bytes: self.zstd_window_bytes },
        }
    }
}

/// What a state of this format may take, however it is used, bytes.
pub(crate) fn state_bytes(format: Format) -> u64 {
    Decoder::contiguous_bytes(format).max(Decoder::windowed_bytes(format)) as u64
}

#[derive(Default)]
pub(crate) struct Decoders {
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    format: Format,
    decoder: Decoder,
    #[expect(dead_code, reason = "held for its drop")]
    charge: Charge,
}

impl Decoders {
    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A state for `cluster`. `grant` has [`state_bytes`] for it, which it keeps if an idle one is found.
    pub(crate) fn take(
        &self,
        format: Format,
        cluster: &Cluster,
        grant: &mut Grant,
    ) -> Result<Held<'_>, ImageError> {
        let mut idle = self.idle();
        let found = idle.iter().position(|i| i.format == format).map(|at| idle.swap_remove(at));
        drop(idle);
        if let Some(found) = found {
            return Ok(Held { home: self, state: Some(found) });
        }
        let (needed_bytes, limit_bytes) = (state_bytes(format), grant.left_bytes());
        let Some(charge) = grant.charge(needed_bytes) else {
            return Err(ImageError::TooLittleMemory { needed_bytes, limit_bytes });
        };
        let decoder = Decoder::new(format).map_err(|e| ImageError::corrupt(cluster.at, e.to_string()))?;
        Ok(Held { home: self, state: Some(Idle { format, decoder, charge }) })
    }

    /// Gives up all idle states, and returns their bytes.
    pub(crate) fn give_up(&self) -> u64 {
        let idle = std::mem::take(&mut *self.idle());
        idle.iter().map(|i| state_bytes(i.format)).sum()
    }
}

/// A state in use; idle again when dropped.
pub(crate) struct Held<'a> {
    home: &'a Decoders,
    state: Option<Idle>,
}

impl Deref for Held<'_> {
    type Target = Decoder;

    fn deref(&self) -> &Decoder {
        match &self.state {
            Some(state) => &state.decoder,
            None => unreachable!("held until dropped"),
        }
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Decoder {
        match &mut self.state {
            Some(state) => &mut state.decoder,
            None => unreachable!("held until dropped"),
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut idle = self.home.idle();
        if idle.len() < MAX_IDLE {
            idle.extend(self.state.take());
        }
    }
}
