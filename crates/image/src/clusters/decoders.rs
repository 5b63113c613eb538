//! A pool of decompressor states, which are reused from cluster to cluster.
//!
//! A new state is charged to the grant of the cluster that needs it, and stays charged while it is idle. Idle states
//! are freed when the budget needs the memory. One mutex guards the list of idle states; a state in use belongs to one
//! thread.

use crate::read::{Algorithm, Cluster};
use crate::{ImageError, Result};
use pagefold_backing::{Charge, Grant};
use pagefold_codec::cluster::{Decoder, Format};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The greatest distance of a match that the format can express. The image may declare a smaller window, but liblz4
/// does not check it, and a cluster must not decode in one way and fail in another.
const LZ4_WINDOW_BYTES: u32 = 65_535;
/// Idle states in the pool at most; further ones are freed after use.
const MAX_IDLE: usize = 8;

/// Parameters of the image's compression, from its superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Formats {
    pub(crate) lzma_dict_bytes: u32,
    pub(crate) zstd_window_bytes: u32,
}

impl Formats {
    pub(crate) fn of(&self, algorithm: Algorithm) -> Format {
        match algorithm {
            Algorithm::Lz4 => Format::Lz4 { window_bytes: LZ4_WINDOW_BYTES },
            Algorithm::MicroLzma => Format::MicroLzma { dict_bytes: self.lzma_dict_bytes },
            Algorithm::Deflate => Format::Deflate,
            Algorithm::Zstd => Format::Zstd { max_window_bytes: self.zstd_window_bytes },
        }
    }
}

/// Bytes that a state of this format takes at most, in whichever way it decodes.
pub(crate) fn state_bytes(format: Format) -> u64 {
    Decoder::contiguous_bytes(format).max(Decoder::windowed_bytes(format)) as u64
}

/// The idle states of one image.
#[derive(Default)]
pub(crate) struct DecoderPool {
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    format: Format,
    decoder: Decoder,
    #[expect(dead_code, reason = "held for its drop")]
    charge: Charge,
}

impl DecoderPool {
    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an idle state of `format`, or makes one and charges it to `grant`, whose size includes [`state_bytes`]
    /// for it. `cluster` is named in errors.
    pub(crate) fn take(
        &self,
        format: Format,
        cluster: &Cluster,
        grant: &mut Grant,
    ) -> Result<DecoderGuard<'_>> {
        let mut idle = self.idle();
        let found = idle.iter().position(|i| i.format == format).map(|at| idle.swap_remove(at));
        drop(idle);
        if let Some(found) = found {
            return Ok(DecoderGuard { pool: self, state: Some(found) });
        }
        let (needed_bytes, limit_bytes) = (state_bytes(format), grant.left_bytes());
        let Some(charge) = grant.charge(needed_bytes) else {
            return Err(ImageError::TooLittleMemory { needed_bytes, limit_bytes });
        };
        let decoder = Decoder::new(format).map_err(|e| ImageError::corrupt(cluster.at, e.to_string()))?;
        Ok(DecoderGuard { pool: self, state: Some(Idle { format, decoder, charge }) })
    }

    /// Frees all idle states, and returns their bytes.
    pub(crate) fn free_idle(&self) -> u64 {
        let idle = std::mem::take(&mut *self.idle());
        idle.iter().map(|i| state_bytes(i.format)).sum()
    }
}

/// A state in use; dropping the guard returns the state to the pool.
pub(crate) struct DecoderGuard<'a> {
    pool: &'a DecoderPool,
    state: Option<Idle>,
}

impl Deref for DecoderGuard<'_> {
    type Target = Decoder;

    fn deref(&self) -> &Decoder {
        match &self.state {
            Some(state) => &state.decoder,
            None => unreachable!("the state is taken only on drop"),
        }
    }
}

impl DerefMut for DecoderGuard<'_> {
    fn deref_mut(&mut self) -> &mut Decoder {
        match &mut self.state {
            Some(state) => &mut state.decoder,
            None => unreachable!("the state is taken only on drop"),
        }
    }
}

impl Drop for DecoderGuard<'_> {
    fn drop(&mut self) {
        let mut idle = self.pool.idle();
        if idle.len() < MAX_IDLE {
            idle.extend(self.state.take());
        }
    }
}
